import { createHash, createHmac } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'

/** A request as a server got it. */
export type SignedRequest = { method: string; url: string; headers: IncomingHttpHeaders; bytes: Buffer }

/** A key pair of examples. */
export const KEY_ID = 'AKIDEXAMPLE'
export const SECRET_KEY = 'wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY'

const hmac = (key: string | Buffer, text: string) => createHmac('sha256', key).update(text).digest()
export const sha256 = (text: string | Buffer) => createHash('sha256').update(text).digest('hex')
const rfc3986 = (text: string) =>
  encodeURIComponent(text).replace(/[!'()*]/g, c => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)

/** The signature that AWS computes for a request as it came, and the one it carries. */
export function signatures(request: SignedRequest, { region, service }: { region: string; service: string }) {
  const { headers, method, url, bytes } = request
  const [, date, signedHeaders, signature] = new RegExp(
    `^AWS4-HMAC-SHA256 Credential=${KEY_ID}/(\\d{8})/${region}/${service}/aws4_request, SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$`,
  ).exec(headers.authorization as string) as RegExpExecArray
  const [path, query = ''] = url.split('?')
  const encodedPath =
    service === 's3'
      ? path
          .split('/')
          .map(part => rfc3986(decodeURIComponent(part)))
          .join('/')
      : path.split('/').map(rfc3986).join('/')
  const pairs = query
    .split('&')
    .filter(pair => pair !== '')
    .map(pair => pair.split('=').map(part => rfc3986(decodeURIComponent(part))))
    .sort(([a, b], [c, d]) => (a === c ? (b < d ? -1 : 1) : a < c ? -1 : 1))
    .map(pair => pair.join('='))
  const canonical = [
    method,
    encodedPath,
    pairs.join('&'),
    ...signedHeaders.split(';').map(name => `${name}:${String(headers[name]).trim().replace(/\s+/g, ' ')}`),
    '',
    signedHeaders,
    sha256(bytes),
  ].join('\n')
  const scope = `${date}/${region}/${service}/aws4_request`
  const text = ['AWS4-HMAC-SHA256', headers['x-amz-date'], scope, sha256(canonical)].join('\n')
  const key = hmac(hmac(hmac(hmac(`AWS4${SECRET_KEY}`, date), region), service), 'aws4_request')
  return { expected: hmac(key, text).toString('hex'), signature, signedHeaders }
}
