//! Changes by operators in the log: who changed what.

use crate::common::{GatewayProcess, run_curl};
use tidegate_rule::key_hash;

#[tokio::test]
async fn changes_of_keys_bans_and_overrides_are_logged_with_their_author() {
    for (keys, rest) in
        [("plain", "192.0.2.7".to_owned()), ("hashed", format!("{:016x}", key_hash("login", &"192.0.2.7")))]
    {
        let gateway = GatewayProcess::start(&format!(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ndecisions: 127.0.0.1:0\nobserve: {{ denials: 10, keys: {keys} }}\n\
             overrides: {{ file: overrides.jsonl }}\nroutes: {{ respond: {{ status: 200 }} }}\nrules: [{{ name: login, key: ip, quota: 5/min }}]\n"
        ))
        .await;
        let admin = gateway.wait_for_line("admin").await;
        let decisions = gateway.wait_for_line("decide").await;
        let post = async |url: String, body: &str| run_curl(&["--data", body, &url]).await.1;
        // One of two items is invalid, so that nothing is reset.
        let failed = r#"[{"rule":"login","key":"192.0.2.7"},{"rule":"lgoin","key":"192.0.2.7"}]"#;
        assert!(post(format!("{admin}/api/v1/reset"), failed).await.contains("did you mean `login`?"));
        assert_eq!(gateway.count_output("key reset"), 0);
        let reset = r#"{"rule":"login","key":"192.0.2.7"}"#;
        assert_eq!(post(format!("{admin}/api/v1/reset"), reset).await, r#"{"reset":true}"#);
        let logged = format!("key reset rule=\"login\" key=\"{rest}\" by=\"api\"");
        gateway.wait_for_output(&logged, 1).await;
        assert_eq!(post(format!("{decisions}/v1/reset"), reset).await, r#"{"reset":true}"#);
        gateway.wait_for_output(&logged, 2).await;
        let ban = r#"{"rule":"login","key":"192.0.2.7","seconds":60,"reason":"noise"}"#;
        assert!(post(format!("{admin}/api/v1/bans"), ban).await.contains("\"author\":\"api\""));
        gateway.wait_for_output(&format!("rule=\"login\" value=\"{rest}\" until="), 1).await;
        gateway.wait_for_output("reason=\"noise\" by=\"api\"", 1).await;
        for (quota, before) in [("9/min", ""), ("8/min", " before=\"9/min\"")] {
            let body = format!(
                r#"{{"rule":"login","key":"192.0.2.7","quota":"{quota}","seconds":3600,"reason":"trial"}}"#
            );
            let (_, reply) =
                run_curl(&["-X", "PUT", "--data", &body, &format!("{admin}/api/v1/overrides")]).await;
            assert!(reply.contains("\"by\":\"api\""), "{reply}");
            let logged =
                format!("override set rule=\"login\" key=\"{rest}\" quota=\"{quota}\"{before} until=");
            gateway.wait_for_output(&logged, 1).await;
        }
        gateway.wait_for_output("reason=\"trial\" by=\"api\" change=2", 1).await;
        let list = run_curl(&[&format!("{admin}/api/v1/overrides")]).await.1;
        let id = list.split('"').find(|part| part.starts_with("o-")).unwrap();
        run_curl(&["-X", "DELETE", &format!("{admin}/api/v1/overrides/{id}")]).await;
        let logged =
            format!("override removed rule=\"login\" key=\"{rest}\" before=\"8/min\" by=\"api\" change=3");
        gateway.wait_for_output(&logged, 1).await;
        assert_eq!(post(format!("{admin}/reload"), "").await, "lists reloaded\n");
        gateway.wait_for_output("policy reload requested by=\"api\"", 1).await;
    }
}
