import { createHash, createHmac } from 'node:crypto'
import type { Access, AwsKeys } from './access.ts'
import { misconfigured } from './failure.ts'
import { regionOf } from './models.ts'

/** Headers of a GET to bedrock's control plane: a bearer key, or AWS Signature Version 4 of the request. */
export function bedrockHeaders(access: Access, url: string, now = new Date()): Record<string, string> {
  const { credential } = access
  if (credential.kind === 'key') return { authorization: `Bearer ${credential.key}` }
  if (credential.kind === 'aws') return signedGet(url, credential.keys, regionOf(access), now)
  const bearer = process.env.AWS_BEARER_TOKEN_BEDROCK
  if (bearer) return { authorization: `Bearer ${bearer}` }
  const { AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN } = process.env
  if (!AWS_ACCESS_KEY_ID || !AWS_SECRET_ACCESS_KEY)
    throw misconfigured(access.id, 'no_credential', 'The deployment has no AWS credentials in its environment')
  const keys = {
    accessKeyId: AWS_ACCESS_KEY_ID,
    secretAccessKey: AWS_SECRET_ACCESS_KEY,
    sessionToken: AWS_SESSION_TOKEN,
  }
  return signedGet(url, keys, regionOf(access), now)
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()

/** Signs a GET without a query for the service `bedrock`. */
export function signedGet(address: string, keys: AwsKeys, region: string, now: Date): Record<string, string> {
  const url = new URL(address)
  const time = now.toISOString().replace(/[-:]|\.\d{3}/g, '')
  const scope = `${time.slice(0, 8)}/${region}/bedrock/aws4_request`
  const headers: Record<string, string> = {
    host: url.host,
    'x-amz-date': time,
    ...(keys.sessionToken && { 'x-amz-security-token': keys.sessionToken }),
  }
  const names = Object.keys(headers).sort()
  const canonical = [
    'GET',
    url.pathname,
    '',
    ...names.map(name => `${name}:${headers[name]}`),
    '',
    names.join(';'),
    sha256(''),
  ].join('\n')
  const signing = [time.slice(0, 8), region, 'bedrock', 'aws4_request'].reduce<string | Buffer>(
    hmac,
    `AWS4${keys.secretAccessKey}`,
  )
  const signature = hmac(signing, ['AWS4-HMAC-SHA256', time, scope, sha256(canonical)].join('\n')).toString('hex')
  const { host: _host, ...sent } = headers
  return {
    ...sent,
    authorization: `AWS4-HMAC-SHA256 Credential=${keys.accessKeyId}/${scope}, SignedHeaders=${names.join(';')}, Signature=${signature}`,
  }
}
