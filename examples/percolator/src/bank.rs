//! The workload: transfers between accounts, audits of all accounts, and pairs of people on duty.

use crate::history::{Kind, Outcome};
use crate::transaction::{Stopped, Transaction, transact};
use crate::world::{World, WorldError};

#[derive(Clone, Copy, Debug)]
pub struct Bank {
    pub accounts: usize,
    pub pairs: usize,
}

impl Bank {
    /// The initial value of every account.
    pub const BALANCE: i64 = 100;

    /// The sum of all accounts, which never changes.
    pub fn total(self) -> i64 {
        self.accounts as i64 * Self::BALANCE
    }

    /// Writes every row's initial value, in one transaction.
    pub fn load<W: World>(self, world: &mut W) -> Result<Outcome, WorldError> {
        transact(world, Kind::Load, |transaction| {
            for at in 0..self.accounts {
                transaction.write(&account(at), Self::BALANCE);
            }
            for pair in 0..self.pairs {
                transaction.write(&duty(pair, 0), ON);
                transaction.write(&duty(pair, 1), ON);
            }
            Ok(())
        })
    }

    /// Runs one transaction of a random kind.
    pub fn work<W: World>(
        self,
        world: &mut W,
        rng: &mut fastrand::Rng,
    ) -> Result<Outcome, WorldError> {
        match rng.u32(0..100) {
            0..AUDITS => self.audit(world),
            AUDITS..AUDITS_AND_DUTIES if self.pairs > 0 => {
                let (pair, who) = (rng.usize(0..self.pairs), rng.usize(0..2));
                transact(world, Kind::Duty, |transaction| change_duty(transaction, pair, who))
            }
            _ => {
                let from = rng.usize(0..self.accounts);
                let to = (from + rng.usize(1..self.accounts)) % self.accounts;
                let amount = rng.i64(1..=AMOUNT_MAX);
                transact(world, Kind::Transfer, |transaction| {
                    transfer(transaction, &account(from), &account(to), amount)
                })
            }
        }
    }

    /// Reads every account and every pair.
    pub fn audit<W: World>(self, world: &mut W) -> Result<Outcome, WorldError> {
        transact(world, Kind::Audit, |transaction| {
            for at in 0..self.accounts {
                transaction.read(&account(at))?;
            }
            for pair in 0..self.pairs {
                transaction.read(&duty(pair, 0))?;
                transaction.read(&duty(pair, 1))?;
            }
            Ok(())
        })
    }
}

/// Whether the row counts in [`Bank::total`].
pub fn is_account(row: &str) -> bool {
    row.starts_with("account/")
}

fn account(at: usize) -> String {
    format!("account/{at}")
}

fn duty(pair: usize, who: usize) -> String {
    format!("duty/{pair}/{who}")
}

fn transfer<W: World>(
    transaction: &mut Transaction<'_, W>,
    from: &str,
    to: &str,
    amount: i64,
) -> Result<(), Stopped> {
    let held = transaction.read(from)?.unwrap_or(0);
    let other = transaction.read(to)?.unwrap_or(0);
    let amount = amount.min(held);
    if amount > 0 {
        transaction.write(from, held - amount);
        transaction.write(to, other + amount);
    }
    Ok(())
}

/// Goes off duty if the other person is on duty; otherwise comes back. If such transactions run one
/// after another, at least one person of a pair is always on duty. If two run at once, both persons
/// may go off duty, because each transaction reads the row that the other one writes. This is write
/// skew, which snapshot isolation allows.
fn change_duty<W: World>(
    transaction: &mut Transaction<'_, W>,
    pair: usize,
    who: usize,
) -> Result<(), Stopped> {
    let me = transaction.read(&duty(pair, who))?;
    let other = transaction.read(&duty(pair, 1 - who))?;
    if me == Some(OFF) {
        transaction.write(&duty(pair, who), ON);
    } else if other == Some(ON) {
        transaction.write(&duty(pair, who), OFF);
    }
    Ok(())
}

const ON: i64 = 1;
const OFF: i64 = 0;
/// Number of audits in a hundred transactions.
const AUDITS: u32 = 4;
const AUDITS_AND_DUTIES: u32 = 14;
/// Largest transfer.
const AMOUNT_MAX: i64 = 20;
