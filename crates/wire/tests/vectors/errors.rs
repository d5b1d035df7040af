//! The table of error codes.

use epicepoch_wire::http::ErrorCode;
use serde_json::json;

#[test]
fn the_errors_are_what_the_vectors_say() {
    let all = ErrorCode::ALL.map(|code| {
        json!({
            "name": code.name(),
            "number": code as u16,
            "http_status": code.status(),
            "retryable": code.is_retryable(),
        })
    });
    let made = json!({
        "about": "Error codes: the name is the value of epicepoch-error, the number is that of the \
                  native protocol. Names and numbers never change.",
        "errors": all,
    });
    super::hold("errors", &made);
}
