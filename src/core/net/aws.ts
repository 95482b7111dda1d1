import { createHash, createHmac } from 'node:crypto'
import { readFile } from 'node:fs/promises'

export type AwsKeys = { accessKeyId: string; secretAccessKey: string; sessionToken?: string }

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()

/** The headers that sign a GET without a query for the service `bedrock`, by AWS Signature Version 4. */
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

type Found = { keys: AwsKeys; expires: number }

const SOURCE_TIMEOUT_MS = 2000
/** Keys are fetched anew so long before they expire. */
const MARGIN_MS = 5 * 60_000

let held: Found | undefined

/**
 * The AWS keys of the deployment, from the first source that has any: the environment, a web identity token, the
 * container's endpoint, the instance's. Null when none has. Kept until shortly before they expire.
 */
export async function deploymentKeys(): Promise<AwsKeys | null> {
  const { env } = process
  if (env.AWS_ACCESS_KEY_ID && env.AWS_SECRET_ACCESS_KEY)
    return keysOf(env.AWS_ACCESS_KEY_ID, env.AWS_SECRET_ACCESS_KEY, env.AWS_SESSION_TOKEN)
  if (held && held.expires - MARGIN_MS > Date.now()) return held.keys
  held = (await webIdentity(env)) ?? (await container(env)) ?? (await instance(env)) ?? undefined
  return held?.keys ?? null
}

const keysOf = (accessKeyId: string, secretAccessKey: string, sessionToken?: string | null): AwsKeys => ({
  accessKeyId,
  secretAccessKey,
  ...(sessionToken && { sessionToken }),
})

type Env = typeof process.env

async function webIdentity(env: Env): Promise<Found | null> {
  if (!env.AWS_WEB_IDENTITY_TOKEN_FILE || !env.AWS_ROLE_ARN) return null
  const region = env.AWS_REGION ?? 'us-east-1'
  const query = new URLSearchParams({
    Action: 'AssumeRoleWithWebIdentity',
    Version: '2011-06-15',
    RoleArn: env.AWS_ROLE_ARN,
    RoleSessionName: env.AWS_ROLE_SESSION_NAME ?? 'muster',
    WebIdentityToken: (await readFile(env.AWS_WEB_IDENTITY_TOKEN_FILE, 'utf8')).trim(),
  })
  const endpoint = env.AWS_ENDPOINT_URL_STS ?? `https://sts.${region}.amazonaws.com`
  const text = await source(endpoint, { method: 'POST', body: query })
  const field = (name: string) => new RegExp(`<${name}>([^<]+)</${name}>`).exec(text ?? '')?.[1]
  return found({
    AccessKeyId: field('AccessKeyId'),
    SecretAccessKey: field('SecretAccessKey'),
    Token: field('SessionToken'),
    Expiration: field('Expiration'),
  })
}

async function container(env: Env): Promise<Found | null> {
  const url = env.AWS_CONTAINER_CREDENTIALS_RELATIVE_URI
    ? `http://169.254.170.2${env.AWS_CONTAINER_CREDENTIALS_RELATIVE_URI}`
    : env.AWS_CONTAINER_CREDENTIALS_FULL_URI
  if (!url) return null
  const file = env.AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE
  const token = file ? (await readFile(file, 'utf8')).trim() : env.AWS_CONTAINER_AUTHORIZATION_TOKEN
  return parsed(await source(url, { headers: token ? { authorization: token } : {} }))
}

async function instance(env: Env): Promise<Found | null> {
  if (env.AWS_EC2_METADATA_DISABLED === 'true') return null
  const base = env.AWS_EC2_METADATA_SERVICE_ENDPOINT ?? 'http://169.254.169.254'
  const token = await source(`${base}/latest/api/token`, {
    method: 'PUT',
    headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '300' },
  })
  if (token === null) return null
  const headers = { 'x-aws-ec2-metadata-token': token }
  const roles = `${base}/latest/meta-data/iam/security-credentials/`
  const role = (await source(roles, { headers }))?.split('\n')[0].trim()
  return role ? parsed(await source(`${roles}${role}`, { headers })) : null
}

/** The body of a 2xx; null for any other answer and for none. */
async function source(url: string, init: RequestInit): Promise<string | null> {
  try {
    const response = await fetch(url, { ...init, redirect: 'error', signal: AbortSignal.timeout(SOURCE_TIMEOUT_MS) })
    const text = await response.text()
    return response.ok ? text : null
  } catch {
    return null
  }
}

type Answer = { AccessKeyId?: string; SecretAccessKey?: string; Token?: string; Expiration?: string }

function parsed(text: string | null): Found | null {
  try {
    return text === null ? null : found(JSON.parse(text) as Answer)
  } catch {
    return null
  }
}

function found({ AccessKeyId, SecretAccessKey, Token, Expiration }: Answer): Found | null {
  if (!AccessKeyId || !SecretAccessKey) return null
  const expires = Expiration === undefined ? Number.NaN : Date.parse(Expiration)
  return {
    keys: keysOf(AccessKeyId, SecretAccessKey, Token),
    expires: Number.isNaN(expires) ? Date.now() + 2 * MARGIN_MS : expires,
  }
}
