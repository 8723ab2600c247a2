# Makes ca.pem, cert.pem and key.pem in the current folder: an authority of its own, whose key is
# removed, and a certificate for servers on this machine. Valid for two days, or as many as given.
set -eu
days=${1:-2}
umask 077
cat > openssl.cnf <<'END'
[req]
distinguished_name = name
[name]
[root]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1, IP:::1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
new='req -config openssl.cnf -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1'
openssl $new -x509 -days "$days" -subj /CN=throw-away -extensions root -keyout ca.key -out ca.pem
openssl $new -subj /CN=master -keyout key.pem -out request.pem
openssl x509 -req -days "$days" -in request.pem -CA ca.pem -CAkey ca.key -set_serial 1 \
    -extfile openssl.cnf -extensions server -out cert.pem
rm -f ca.key request.pem openssl.cnf
