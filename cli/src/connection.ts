import { readFileSync } from 'node:fs'
import { Client, type OAuthStore, oauth, parseExactJson } from '@muster/client'
import { EXIT, Failure, UsageError } from './failure.ts'
import { isId } from './ids.ts'
import {
  type Credential,
  type Profile,
  profileName,
  readCredentials,
  readProfiles,
  storeCredential,
  withLock,
} from './profiles.ts'
import { note } from './terminal.ts'
import { noteOtherVersion } from './version-notice.ts'

/** Options of every command that calls the service. */
export type ConnectionOptions = {
  url?: string
  profile?: string
  project?: string
  timeout?: number
  debug?: boolean
  quiet?: boolean
  json?: boolean
  printRequest?: boolean
  insecureHttp?: boolean
  /** Texts that are never printed. */
  secrets?: string[]
}

const DEFAULT_URL = 'http://localhost:5047'
export const CLIENT_ID = 'muster-cli'

/** Where a network error happened. */
export type Step = 'resolve' | 'connect' | 'TLS' | 'answer'

/** An address with a credential, and its last answer. */
export class Connection {
  readonly url: URL
  readonly profile: string
  readonly settings: Profile
  readonly options: ConnectionOptions
  /** Unchanged body of the last answer of JSON. */
  body = ''
  /** Step of the last network error. */
  step: Step | null = null
  /** Whether `--print-request` has printed the request. */
  isPrinted = false
  #credential: Credential | undefined
  readonly #clients = new Map<boolean, Promise<Client>>()

  private constructor(url: URL, profile: string, settings: Profile, options: ConnectionOptions) {
    this.url = url
    this.profile = profile
    this.settings = settings
    this.options = options
  }

  static async open(options: ConnectionOptions): Promise<Connection> {
    const profile = profileName(options.profile)
    const profiles = await readProfiles()
    const settings = profiles[profile] ?? {}
    if (options.profile && !profiles[profile])
      throw new UsageError(`there is no profile ${profile}`, 'Try: muster profile list')
    const url = parseUrl(options.url || process.env.MUSTER_URL || settings.url || DEFAULT_URL)
    requireSafe(url, options.insecureHttp)
    const connection = new Connection(url, profile, settings, options)
    await useNetworkSettings(settings.ca_file)
    return connection
  }

  /** The base address without a trailing slash. */
  get base(): string {
    return this.url.href.replace(/\/$/, '')
  }

  /** The project to use: an id or a name. */
  get projectChoice(): string | undefined {
    return this.options.project || process.env.MUSTER_PROJECT || this.settings.project
  }

  /** Returns a client of this address; for operations of a project, with the project in use, found by its name. */
  client(isOfProject = false): Promise<Client> {
    const found = this.#clients.get(isOfProject) ?? this.#open(isOfProject)
    this.#clients.set(isOfProject, found)
    return found
  }

  /** Returns the ID of the project to use, if any. */
  async projectId(): Promise<string | undefined> {
    const choice = this.projectChoice
    return !choice || isId(choice) ? choice : (await this.client(true)).project
  }

  async #open(isOfProject: boolean): Promise<Client> {
    const { timeout, printRequest } = this.options
    const choice = isOfProject ? this.projectChoice : undefined
    const token = printRequest ? undefined : await this.#token()
    const make = (project: string | undefined) =>
      new Client({
        baseUrl: this.base,
        token,
        project,
        fetch: this.#fetch,
        parseJson: parseExactJson,
        maxRetries: printRequest ? 0 : 1,
        ...(timeout ? { timeoutMs: timeout } : {}),
      })
    if (!choice || isId(choice)) return make(choice)
    if (printRequest) throw new UsageError('--print-request sends nothing and needs the ID of the project')
    return make(await this.#findProject(make(undefined), choice))
  }

  async #findProject(client: Client, name: string): Promise<string> {
    const { listProjects } = await import('@muster/client/operations')
    for await (const project of listProjects(client, { name })) if (project.name === name) return project.id
    throw new Failure(`there is no project ${name}`, EXIT.missing, 'Try: muster projects list')
  }

  /** Returns the credential: MUSTER_TOKEN, or the credential of the profile, which belongs to one address. */
  async #token(): Promise<string | (() => Promise<string>) | undefined> {
    if (process.env.MUSTER_TOKEN) return process.env.MUSTER_TOKEN
    const credential = readCredentials()[this.profile]
    if (!credential || new URL(credential.url).origin !== this.url.origin) return undefined
    this.#credential = credential
    if (credential.token) return credential.token
    const signIn = oauth({ baseUrl: this.base, clientId: CLIENT_ID, store: tokenStore(this), fetch: this.#fetch })
    return () => signIn.token()
  }

  /** The stored credential in use. */
  get credential(): Credential | undefined {
    return this.#credential
  }

  readonly fetch: typeof globalThis.fetch = (input, init) => this.#fetch(input, init)

  readonly #fetch: typeof globalThis.fetch = async (input, init = {}) => {
    const { printRequest, debug } = this.options
    if (printRequest) {
      const { curlOf } = await import('./debug.ts')
      process.stdout.write(`${curlOf(String(input), init, this.options.secrets ?? [])}\n`)
      this.isPrinted = true
      throw new Error('printed')
    }
    const debugging = debug ? await import('./debug.ts') : null
    if (debugging) note(debugging.requestText(String(input), init, this.options.secrets ?? []))
    this.step = null
    let response: Response
    try {
      response = await globalThis.fetch(input, init)
    } catch (error) {
      this.step = stepOf(error)
      throw error
    }
    await this.#noteVersion(init, response)
    if (!/^application\/json\b/.test(response.headers.get('content-type') ?? '')) {
      if (debugging) note(debugging.answerText(response, null, []))
      return response
    }
    this.body = await response.text()
    if (debugging) note(debugging.answerText(response, this.body, this.options.secrets ?? []))
    const { status, headers } = response
    return new Response(this.body, { status, headers })
  }

  /** Notes a service of another version, except where stderr is read by a program. */
  async #noteVersion(init: RequestInit, { headers }: Response): Promise<void> {
    const own = new Headers(init.headers).get('x-muster-client')?.split('/')[0]
    const service = headers.get('x-muster-version')
    if (!own || !service || own === service || this.options.quiet || this.options.json) return
    noteOtherVersion(own, service, this.profile)
  }
}

/** Stores the tokens of a sign-in in the credentials of a profile. A pending sign-in stays in memory. */
export function tokenStore({ profile, base }: Pick<Connection, 'profile' | 'base'>): OAuthStore {
  let pending: Awaited<ReturnType<OAuthStore['get']>> = null
  let isLocked = false
  return {
    get: () => pending ?? readCredentials()[profile] ?? null,
    async set(session) {
      pending = session?.pending ? session : null
      if (pending) return
      const store = async () => storeCredential(profile, session?.tokens ? { url: base, tokens: session.tokens } : null)
      await (isLocked ? store() : withLock(store))
    },
    exclusive: run =>
      withLock(async () => {
        isLocked = true
        try {
          return await run()
        } finally {
          isLocked = false
        }
      }),
  }
}

export function parseUrl(text: string): URL {
  let url: URL
  try {
    url = new URL(text)
  } catch {
    throw new UsageError(`${text} is no address`, 'An address starts with https:// or http://')
  }
  if (!/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash)
    throw new UsageError('the address must be http or https, without credentials, query and fragment')
  return url
}

export const isLoopback = ({ hostname }: URL): boolean =>
  hostname === 'localhost' || hostname === '[::1]' || /^127\.\d+\.\d+\.\d+$/.test(hostname)

function requireSafe(url: URL, isAllowed = false): void {
  if (url.protocol === 'https:' || isLoopback(url) || isAllowed) return
  throw new UsageError(
    `${url.origin} has no TLS: everybody on the way could read the token`,
    'Use https, or add --insecure-http.',
  )
}

/** Applies the proxy of the environment and the certificates of the profile to every connection of this process. */
async function useNetworkSettings(caFile: string | undefined): Promise<void> {
  const { HTTPS_PROXY, https_proxy, HTTP_PROXY, http_proxy } = process.env
  if (HTTPS_PROXY || https_proxy || HTTP_PROXY || http_proxy) {
    const { setGlobalProxyFromEnv } = (await import('node:http')) as { setGlobalProxyFromEnv?: () => void }
    if (!setGlobalProxyFromEnv) throw new Failure('this Node has no support of HTTPS_PROXY', 1, 'Use Node 24 or later.')
    setGlobalProxyFromEnv()
  }
  if (!caFile) return
  const tls = (await import('node:tls')).default as typeof import('node:tls') & {
    setDefaultCACertificates?: (certificates: string[]) => void
    getCACertificates?: (type: string) => string[]
  }
  if (!tls.setDefaultCACertificates || !tls.getCACertificates)
    throw new Failure('this Node has no support of ca_file', 1, 'Use Node 24 or later, or NODE_EXTRA_CA_CERTS.')
  let certificate: string
  try {
    certificate = readFileSync(caFile, 'utf8')
  } catch (error) {
    throw new Failure(`ca_file cannot be read: ${(error as Error).message}`)
  }
  tls.setDefaultCACertificates([...tls.getCACertificates('default'), certificate])
}

function stepOf(error: unknown): Step {
  const code = String((error as { cause?: { code?: string } }).cause?.code ?? '')
  if (/^(ENOTFOUND|EAI_)/.test(code)) return 'resolve'
  if (/^(ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT|UND_ERR_CONNECT_TIMEOUT)$/.test(code)) return 'connect'
  if (/CERT|^ERR_(TLS|SSL)|SELF_SIGNED|UNABLE_TO|^EPROTO$/.test(code)) return 'TLS'
  return 'answer'
}
