import type { AddressInfo } from 'node:net'
import { Client, OAuthError, type OAuthTokens, oauth } from '@muster/client'
import { canOpenBrowser, openBrowser } from './browser.ts'
import { CLIENT_ID, Connection, tokenStore } from './connection.ts'
import { EXIT, Failure, isRefusal, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import { readCredentials, saveProfile, storeCredential, withLock } from './profiles.ts'
import { printAnswer } from './render.ts'
import { reportError } from './report.ts'
import { outputSettings } from './run.ts'
import { sleep } from './sleep.ts'
import { ask, canAsk, note, printLine, readStdin, visible } from './terminal.ts'

const USER_SCOPE = 'muster:user offline_access'
const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code'
const LOGIN_MS = 10 * 60_000

const collect = (value: string, previous: string[] = []): string[] => [...previous, value]

/** `muster login` */
export async function loginCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster login'), { output: false })
    .description(
      'Sign in with the browser, and store the sign-in in the profile. With --project or --scope the sign-in is bound to one project, chosen on the consent page.',
    )
    .option('--device', 'show a code to enter in a browser of any machine')
    .option('--scope <actions>', 'actions to request for one project, such as agents:*; repeatable', collect)
    .option('--password', 'sign in with a name and a password, from a prompt or stdin')
    .option('--username <name>', 'name for --password')
    .option('--key', 'use a project key, from a prompt or stdin')
    .option('--no-browser', 'print the address without opening it')
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options } = parseWith(parser, args)
  if ([options.device, options.password, options.key].filter(Boolean).length > 1)
    throw new UsageError('--device, --password and --key exclude each other')
  // A first sign-in makes the profile that it names.
  const name: string | undefined = options.profile
  if (name && options.url) await saveProfile(name, profile => ({ ...profile, url: options.url }))
  const connection = await Connection.open(options)
  try {
    readCredentials()
    await signIn(connection, options)
    await saveProfile(connection.profile, profile => ({
      ...profile,
      url: connection.base,
      ...(options.project ? { project: options.project } : {}),
    }))
    note(`signed in to ${connection.base} (profile ${connection.profile})`)
    return EXIT.done
  } catch (error) {
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection })
  }
}

async function signIn(connection: Connection, options: Record<string, any>): Promise<void> {
  if (options.key) return keySignIn(connection, await readSecret('project key: '))
  if (options.password) return passwordSignIn(connection, options.username)
  const scope = options.project || options.scope ? `${(options.scope ?? ['*']).join(' ')} offline_access` : USER_SCOPE
  if (options.device || (!canOpenBrowser() && options.browser !== false)) return deviceSignIn(connection, scope)
  return browserSignIn(connection, scope, options.browser !== false)
}

const storeToken = (connection: Connection, token: string): Promise<void> =>
  withLock(async () => storeCredential(connection.profile, { url: connection.base, token }))

/** Signs in with a key that the service accepts: with another one the next command would fail. */
async function keySignIn(connection: Connection, token: string): Promise<void> {
  if (!/^[\x21-\x7e]+$/.test(token)) throw new UsageError('the token is empty or has spaces')
  const client = new Client({ baseUrl: connection.base, token, fetch: connection.fetch, maxRetries: 0 })
  const { getMe } = await import('@muster/client/operations')
  try {
    await getMe(client, {}, { signal: interruption })
  } catch (error) {
    // A key without the permission to read itself is a key of the service.
    if (!isRefusal(error) || error.status !== 403) throw error
  }
  await storeToken(connection, token)
}

async function readSecret(question: string): Promise<string> {
  const text = canAsk() ? await ask(question, { isSecret: true }) : (await readStdin()).toString('utf8')
  return text.trim()
}

async function passwordSignIn(connection: Connection, given: string | undefined): Promise<void> {
  const username = given ?? (canAsk() ? await ask('username: ') : undefined)
  if (!username) throw new UsageError('--username is required')
  const password = canAsk() ? await ask('password: ', { isSecret: true }) : (await readStdin()).toString('utf8')
  const { loginUser } = await import('@muster/client/operations')
  connection.options.secrets = [password.replace(/\r?\n$/, '')]
  const client = new Client({ baseUrl: connection.base, fetch: connection.fetch, maxRetries: 0 })
  const { token } = await loginUser(
    client,
    { username, password: password.replace(/\r?\n$/, '') },
    { signal: interruption },
  )
  await storeToken(connection, token)
}

/** Signs in with a code that the browser brings to a port of this machine. */
async function browserSignIn(connection: Connection, scope: string, opens: boolean): Promise<void> {
  const signIn = oauth({
    baseUrl: connection.base,
    clientId: CLIENT_ID,
    store: tokenStore(connection),
    fetch: connection.fetch,
  })
  const { createServer } = await import('node:http')
  const server = createServer()
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const redirectUri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/callback`
  try {
    const { url } = await signIn.start({ redirectUri, scope })
    note(`Open this address to sign in:\n  ${visible(url)}`)
    if (opens) await openBrowser(url)
    await new Promise<void>((resolve, reject) => {
      const late = setTimeout(
        () => reject(new Failure('there was no sign-in within 10 minutes', EXIT.signedOut)),
        LOGIN_MS,
      )
      interruption.addEventListener('abort', () => reject(interruption.reason), { once: true })
      server.on('request', async (req, res) => {
        if (req.method !== 'GET' || !req.url?.startsWith('/callback?')) return void res.writeHead(404).end()
        const page = (text: string) =>
          res
            .writeHead(200, {
              'content-type': 'text/plain; charset=utf-8',
              'cache-control': 'no-store',
              connection: 'close',
            })
            .end(`${text}\n`)
        try {
          await signIn.finish(new URL(req.url, redirectUri))
          page('You are signed in and may close this page.')
          clearTimeout(late)
          resolve()
        } catch (error) {
          page('The sign-in failed. You may close this page.')
          clearTimeout(late)
          reject(error)
        }
      })
    })
  } finally {
    server.close()
    server.closeIdleConnections()
  }
}

type DeviceCode = {
  device_code: string
  user_code: string
  verification_uri: string
  verification_uri_complete?: string
  expires_in: number
  interval?: number
}

/** Signs in with a code that the user enters in a browser of any machine. */
async function deviceSignIn(connection: Connection, scope: string): Promise<void> {
  const post = async (path: string, form: Record<string, string>): Promise<{ status: number; body: any }> => {
    const response = await connection.fetch(`${connection.base}${path}`, {
      method: 'POST',
      headers: { accept: 'application/json' },
      body: new URLSearchParams({ client_id: CLIENT_ID, ...form }),
      redirect: 'error',
      signal: AbortSignal.any([interruption, AbortSignal.timeout(30_000)]),
    })
    return { status: response.status, body: await response.json().catch(() => ({})) }
  }
  const started = await post('/oauth/device_authorization', { scope })
  if (started.status === 404)
    throw new Failure('the service has no sign-in of devices', EXIT.missing, 'Try: muster login --password, or --key')
  if (started.status !== 200)
    throw new OAuthError(
      started.body.error ?? 'server_error',
      started.body.error_description ?? `status ${started.status}`,
    )
  const code = started.body as DeviceCode
  note(`Open ${visible(code.verification_uri)}\nand enter the code ${visible(code.user_code)}`)
  const end = Date.now() + code.expires_in * 1000
  for (let seconds = code.interval ?? 5; ; ) {
    await sleep(seconds * 1000)
    if (Date.now() > end) throw new OAuthError('expired_token', 'the code has expired')
    const { status, body } = await post('/oauth/token', { grant_type: DEVICE_GRANT, device_code: code.device_code })
    if (status === 200) return storeTokens(connection, body)
    if (body.error === 'slow_down') seconds += 5
    else if (body.error !== 'authorization_pending')
      throw new OAuthError(body.error ?? 'server_error', body.error_description ?? body.error ?? `status ${status}`)
  }
}

async function storeTokens(connection: Connection, answer: Record<string, any>): Promise<void> {
  const { access_token, refresh_token, scope, expires_in } = answer
  const tokens: OAuthTokens = { access_token, refresh_token, scope, expires_at: Date.now() + Number(expires_in) * 1000 }
  await tokenStore(connection).set({ tokens })
}

/** `muster logout`: revokes the sign-in, and forgets it even if the service does not answer. */
export async function logoutCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster logout').description('Sign out.'), { output: false })
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options } = parseWith(parser, args)
  const connection = await Connection.open(options)
  const credential = readCredentials()[connection.profile]
  if (!credential) throw new Failure(`profile ${connection.profile} is not signed in`, EXIT.signedOut)
  try {
    if (credential.tokens)
      await oauth({
        baseUrl: credential.url,
        clientId: CLIENT_ID,
        store: tokenStore(connection),
        fetch: connection.fetch,
      }).revoke()
    else await withLock(async () => storeCredential(connection.profile, null))
  } catch (error) {
    note(`muster: the sign-in is forgotten, but could not be revoked: ${visible((error as Error).message)}`)
  }
  note(`signed out of ${credential.url}`)
  return EXIT.done
}

/** `muster whoami`: prints the user and the credential in use. */
export async function whoamiCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster whoami').description('Show the user and the credential.'))
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options } = parseWith(parser, args)
  const connection = await Connection.open(options)
  const settings = outputSettings(options, connection.settings.output)
  try {
    const client = await connection.client()
    const { getMe } = await import('@muster/client/operations')
    const me = await getMe(client, {}, { signal: interruption })
    const { credential, username, role } = me
    const { type, project_id, expires_at, scopes } = credential
    if (!settings.isHuman) await printAnswer(me, connection.body, settings)
    else
      await printAnswer(
        {
          user: username,
          role,
          credential: type,
          project: project_id,
          expires_at,
          scopes: scopes?.join(' ') ?? null,
          service: connection.base,
        },
        '',
        settings,
      )
    return EXIT.done
  } catch (error) {
    return reportError(error, { connection, isJson: options.json })
  }
}
