//! The header `host`: by which name a client reached this server.
//!
//! A page of any site can give its own name the address 127.0.0.1 once it is loaded (DNS rebinding). Then the browser
//! takes this server for that site, and the page may send requests and read answers. Its requests still carry the site's
//! name. Where no API key stands in the way, only names that are certainly this machine's are served.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{StatusCode, Version, header};

use super::ApiError;

/// The names that are served.
#[derive(Debug)]
pub(super) struct AllowedHosts {
    /// Beside those of loopback.
    names: Vec<String>,
    /// Whether addresses are served too: those that the operator has put on the network. Rebinding needs a name.
    addresses: bool,
}

impl AllowedHosts {
    pub(super) fn new(names: &[String], on_loopback: bool) -> Self {
        Self { names: names.iter().map(|name| normal(name)).collect(), addresses: !on_loopback }
    }

    /// Refuses a request that names another host.
    pub(super) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let about_host = |error: ApiError| ApiError { param: Some("host".into()), ..error };
        let mut given = request.headers().get_all(header::HOST).iter();
        let host = given.next();
        if given.next().is_some() {
            return Err(about_host(ApiError::bad_request("the header `host` is there more than once")));
        }
        // A client that names the server in the request line means that one.
        let line = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let header = host.map(axum::http::HeaderValue::as_bytes).filter(|host| !host.is_empty());
        if line.is_none() && header.is_none() {
            // Before HTTP/1.1 there was no such header. Browsers are not that old.
            return match request.version() {
                Version::HTTP_09 | Version::HTTP_10 => Ok(()),
                _ => Err(about_host(ApiError::bad_request("the header `host` is missing"))),
            };
        }
        match line.into_iter().chain(header).find(|host| !self.allows(host)) {
            Some(host) => Err(about_host(refusal(&String::from_utf8_lossy(host)))),
            None => Ok(()),
        }
    }

    /// Whether a host, with or without a port, is served.
    fn allows(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = normal(authority.host());
        match name.parse::<IpAddr>() {
            Ok(address) if self.addresses || is_loopback(address) => true,
            _ => name == "localhost" || self.names.contains(&name),
        }
    }
}

/// Without the brackets of an IPv6 address, the dot that ends a full name, and capitals.
fn normal(name: &str) -> String {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    // One address can be written in many ways.
    match bare.parse::<Ipv6Addr>() {
        Ok(address) => address.to_string(),
        Err(_) => bare.to_ascii_lowercase(),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    let mapped = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    };
    address.is_loopback() || mapped.as_ref().is_some_and(Ipv4Addr::is_loopback)
}

fn refusal(host: &str) -> ApiError {
    let host: String = host.chars().take(256).collect();
    let message = format!(
        "the header `host` is `{host}`: without an API key only `localhost` and loopback addresses are served. Set an API \
         key, or add the name to `server.allowed_hosts`"
    );
    ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host_not_allowed", message)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn only_names_of_this_machine_and_configured_ones_are_served() {
        let local = AllowedHosts::new(&["Box.lan".into(), "[2001:DB8::0:1]".into()], true);
        for host in [
            "localhost",
            "LocalHost:30000",
            "localhost.:1",
            "127.0.0.1",
            "127.1.2.3:80",
            "[::1]",
            "[0:0:0:0:0:0:0:1]:9",
            "[::ffff:127.0.0.1]",
            "box.lan:5",
            "BOX.LAN.",
            "[2001:db8::1]:3",
        ] {
            assert!(local.allows(host.as_bytes()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:30000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example@localhost",
            "localhost@evil.example",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "[::2]",
            "::1 evil",
            "evil.box.lan",
            "localhost..",
            "a b",
            "\u{e9}",
        ] {
            assert!(!local.allows(host.as_bytes()), "{host}");
        }
        // On a public address that the operator has opened, addresses are served as well, but no other names.
        let public = AllowedHosts::new(&[], false);
        assert!(public.allows(b"10.0.0.1:30000") && public.allows(b"[2001:db8::7]") && public.allows(b"localhost"));
        assert!(!public.allows(b"evil.example"));
    }

    #[test]
    fn the_request_line_counts_and_a_missing_header_only_where_it_may_be() {
        let allowed = AllowedHosts::new(&[], true);
        let status = |uri: &str, version: Version, hosts: &[&str]| {
            let mut request = Request::builder().uri(uri).version(version);
            for host in hosts {
                request = request.header(header::HOST, *host);
            }
            let request = request.body(Body::empty()).expect("a request");
            allowed.check(&request).map_err(|error| error.status.as_u16())
        };
        assert_eq!(status("/", Version::HTTP_11, &["localhost:1"]), Ok(()));
        assert_eq!(status("/", Version::HTTP_11, &["evil.example"]), Err(421));
        assert_eq!(status("http://evil.example/", Version::HTTP_11, &["localhost"]), Err(421));
        assert_eq!(status("http://localhost/", Version::HTTP_11, &["evil.example"]), Err(421));
        assert_eq!(status("http://localhost:3/", Version::HTTP_11, &["localhost:3"]), Ok(()));
        assert_eq!(status("/", Version::HTTP_11, &["localhost", "localhost"]), Err(400));
        assert_eq!(status("/", Version::HTTP_11, &[]), Err(400));
        assert_eq!(status("/", Version::HTTP_11, &[""]), Err(400));
        assert_eq!(status("/", Version::HTTP_10, &[]), Ok(()));
        assert_eq!(status("/", Version::HTTP_10, &["evil.example"]), Err(421));
    }
}
