import assert from 'node:assert/strict'
import { Agent, request } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { type App, createApp } from '#app.ts'
import { loadConfig } from '#config.ts'
import type { Clock } from '#core/base/clock.ts'
import type { Config } from '#core/base/config.ts'
import { createLog } from '#core/base/log.ts'
import type { Services } from '#core/base/services.ts'
import { openTelemetry } from '#core/base/telemetry.ts'
import { type Queryable, rawQuery, sql } from '#core/db/sql.ts'
import { openServer } from '#core/http/server.ts'
import { loadedModules, loadModules, workForConcerns } from '#core/modules/module.ts'
import { inCellOf } from '#core/services/cell.ts'
import { sealedForCell } from '#core/services/cell-directory.ts'
import { Cells } from '#core/services/cells.ts'
import { copiesState, startCopies } from '#core/services/copies.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { openLocalWork } from '#core/work/local-work.ts'
import type { WORKER_KINDS } from '#core/work/settings.ts'
import { startWebHeartbeat } from '#core/work/web-heartbeat.ts'
import { startWorkers } from '#core/work/worker.ts'
import { COST } from '#identity/users/passwords.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { modules } from '#modules.ts'
import { poolOfCells } from './cell-pool.ts'
import { drivesClient, type Reply, sendByClient } from './client-driver.ts'
import { declaredOnly } from './declared-fields.ts'
import { testEnvironment } from './environment.ts'
import { runWorker } from './hosts.ts'
import { ADMIN, CELL_SCHEMA, cloneTemplate, HAS_TWO_SERVERS, hasSecondDatabase, secondCellUrl } from './postgres.ts'
import { startProcess } from './processes.ts'

export { ADMIN, type Reply }

loadModules(modules)

/** Calls as one credential. `send` never throws for a status. */
export type Client = {
  token: string | null
  get(path: string, headers?: Record<string, string>): Promise<Reply>
  post(path: string, body?: unknown, headers?: Record<string, string>): Promise<Reply>
  put(path: string, body?: unknown, headers?: Record<string, string>): Promise<Reply>
  patch(path: string, body?: unknown, headers?: Record<string, string>): Promise<Reply>
  delete(path: string, headers?: Record<string, string>): Promise<Reply>
}

/** As a neighbour: a project at home, also in the profiles of cells. */
export const AT_HOME = 'proj_00000000000000000000000000'

export type TestProject = { id: string; key: Client; keyId: string }

export type TestApp = {
  url: string
  databaseUrl: string
  /** Services of home; of the second cell if all projects are there. */
  services: OpenServices
  /** Services of home: of users, policies and OAuth. */
  home: OpenServices
  /** Executes statements, past the API, in the cells that have the rows. */
  pool: Queryable
  /** Services of the cell of a project, or that made an ID; their writes make IDs of that cell. */
  servicesOf(id: string): OpenServices
  /** URL of the database, and schema, of the cell of a project, or that made an ID. */
  databaseUrlOf(id: string): string
  /** Runs work, past the API, with the services of the cell of a project, or that made an ID. */
  inCellOf<T>(id: string, work: (services: Services) => T): T
  /** Runs work, past the API, with the services of each cell in turn; returns its results, home first. */
  inEachCell<T>(work: (services: Services) => Promise<T>): Promise<T[]>
  config: Config
  /** The first admin, signed in. */
  admin: Client
  anonymous: Client
  as(token: string | null): Client
  /** A project made by the admin, and a bound key of it with a policy that allows everything in it. */
  project(name?: string, neighbour?: string): Promise<TestProject>
  /**
   * A project made by the admin, in the cell of the project `neighbour` if it is given, and a bound key of it with a policy that allows
   * exactly these actions in it.
   */
  projectWith(actions: readonly string[], name?: string, neighbour?: string): Promise<TestProject>
  /** A user without policies, signed in. */
  user(username?: string, policies?: object[]): Promise<Client & { id: string }>
  /** Rows of a statement, past the API. */
  rows(text: string, values?: unknown[]): Promise<readonly any[]>
  /** Lines that this process and its worker process logged. */
  logs: string[]
  /** Statements that this process sent. */
  statements: string[]
  /** The process of the workers; null without workers and when they run in this process. */
  worker: { pid: number } | null
  close(): Promise<void>
}

const agent = new Agent({ keepAlive: true })

/** One request without its redirects, in a third of the processor time that `fetch` takes. */
const exchange = (
  address: string,
  method: string,
  body: Buffer | null,
  headers: Record<string, string>,
): Promise<{ status: number; headers: Headers; text: string }> =>
  new Promise((resolve, reject) => {
    const sent = request(address, { method, headers, agent }, response => {
      const { statusCode, rawHeaders } = response
      const parts: Buffer[] = []
      response.on('data', part => parts.push(part))
      response.on('error', reject)
      response.on('end', () => {
        const received = new Headers()
        for (let at = 0; at < rawHeaders.length; at += 2) received.append(rawHeaders[at], rawHeaders[at + 1])
        resolve({
          status: statusCode as number,
          headers: received,
          text: new TextDecoder().decode(Buffer.concat(parts)),
        })
      })
    })
    sent.on('error', reject)
    sent.end(body ?? undefined)
  })

let counter = 0

type Place = 'home' | 'second' | 'alternate'

/** Where the profile of cells makes projects. */
const PLACE = (process.env.TEST_CELLS ?? null) as Place | null

/** Where each app makes its projects in the profile of cells, and how many it has made, by its URL. */
const places = new Map<string, { place: Place; made: number }>()

/** Number of cells that each process of a test serves. */
export const CELL_COUNT = PLACE ? 2 : 1

const Account = z.strictObject({ id: z.string(), role: z.enum(['admin', 'user']), token_version: z.number() })

/** Returns the cell of the next project of an app in the profile of cells: the first is at home if they alternate. */
function cellOfNext(url: string): string {
  const { place, made } = places.get(url) ?? { place: PLACE as Place, made: 0 }
  places.set(url, { place, made: made + 1 })
  return place === 'alternate' ? ['home', 'second'][made % 2] : place
}

/** A client for a base URL. Paths are relative to /api/v1 unless they start with `//`. */
export function client(url: string, token: string | null): Client {
  const send = async (
    method: string,
    path: string,
    body?: any,
    headers: Record<string, string> = {},
  ): Promise<Reply> => {
    if (PLACE && method === 'POST' && path === '/projects' && body && typeof body === 'object' && !body.cell)
      body = { ...body, cell: cellOfNext(url) }
    if (drivesClient() && path.startsWith('/') && !path.startsWith('//')) {
      const reply = await sendByClient(url, token, { method, path, body, headers })
      if (reply) return { ...reply, body: declaredOnly(method, path, reply.status, reply.body) }
    }
    const address = path.startsWith('//') ? `${url}${path.slice(1)}` : `${url}/api/v1${path}`
    const sent = body === undefined ? null : Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
    const response = await exchange(address, method, sent, {
      accept: '*/*',
      'user-agent': 'node',
      ...(token ? { authorization: `Bearer ${token}` } : {}),
      ...(sent ? { 'content-type': 'application/json', 'content-length': String(sent.length) } : {}),
      ...headers,
    })
    const { status, text } = response
    const type = response.headers.get('content-type')
    const json = type?.includes('json') && !type.includes('ndjson')
    const read = text && json ? declaredOnly(method, path, status, JSON.parse(text)) : text || null
    return { status, body: read, headers: response.headers }
  }
  return {
    token,
    get: (path, headers) => send('GET', path, undefined, headers),
    post: (path, body, headers) => send('POST', path, body, headers),
    put: (path, body, headers) => send('PUT', path, body, headers),
    patch: (path, body, headers) => send('PATCH', path, body, headers),
    delete: (path, headers) => send('DELETE', path, undefined, headers),
  }
}

/** log2 of the N of scrypt in tests that are not about passwords: 0.1 ms a hash in place of 100. */
const CHEAP_LN = 5
const REAL_LN = COST.ln

/** Hashes passwords at next to no cost from now on: the state in which tests start. */
export function cheapPasswords(): void {
  COST.ln = CHEAP_LN
}

/** Hashes passwords at the cost of production until `cheapPasswords` is called. */
export function realPasswords(): void {
  COST.ln = REAL_LN
}

cheapPasswords()

/**
 * Starts the real application on a new database, in this process. `workers` names the concerns that run in a separate
 * worker process with the same settings. `inProcess` runs them in this process, for tests that count their statements or
 * call into them; a clock or a module of the test that is loaded implies it. `env` overrides settings. In the profile of cells,
 * `together` makes all projects in the second cell, for tests that share between projects, or write past the API in one cell.
 */
export async function startApp(
  options: {
    env?: Record<string, string>
    workers?: (typeof WORKER_KINDS)[number][]
    inProcess?: boolean
    clock?: Clock
    databaseUrl?: string
    together?: boolean
  } = {},
): Promise<TestApp> {
  const database = options.databaseUrl
    ? { url: options.databaseUrl, drop: async () => {} }
    : await cloneTemplate({ admin: true })
  const config = loadConfig({ ...testEnvironment(database.url), ...options.env })
  const logs: string[] = []
  const log = createLog({ level: config.LOG_LEVEL, destination: { write: (line: string) => void logs.push(line) } })
  const statements: string[] = []
  const telemetry = await openTelemetry(config, { role: 'web', log })
  const concerns = options.workers ?? []
  const inside =
    options.inProcess ||
    options.clock !== undefined ||
    loadedModules().length > modules.length ||
    process.env.TEST_IN_PROCESS === 'true'
  const starting =
    concerns.length === 0 || inside
      ? null
      : startOutside(database.url, { SHUTDOWN_GRACE_MS: '5000', ...options.env }, concerns, config, line =>
          logs.push(`${line}\n`),
        )
  starting?.catch(() => {})
  const opening = { clock: options.clock, strict: true, onRoundTrip: (text: string) => void statements.push(text) }
  const home = await openServices(config, { log, role: 'worker', ...opening })
  const serve = async (of: Services) => {
    const heartbeat = config.WEB_EXECUTES ? await startWebHeartbeat(of) : null
    const local = heartbeat && openLocalWork(of, heartbeat.isRecent)
    const stopInCell = of === home ? null : await startInside(of, inside ? concerns : [])
    return { drain: () => Promise.all([stopInCell?.(), local?.stop(5000)]), end: async () => heartbeat?.end() }
  }
  const secondUrl = PLACE ? await secondCellUrl(database.url) : database.url
  const cells = PLACE ? await startTestCells(home, secondUrl, { serve, options: opening }) : null
  const serving = await inCellOf(home, () => serve(home))
  const isTogether = options.together || PLACE === 'second'
  const secondCell = cells?.named('second')
  const second = isTogether && (secondCell?.services as OpenServices | null)
  const services = second ? writingInCell(second) : home
  const app: App = createApp(home)
  const server = openServer(app.http, {
    docsBaseUrl: config.DOCS_BASE_URL,
    log,
    idleMs: config.HTTP_IDLE_TIMEOUT_MS,
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  places.set(url, { place: !secondCell ? 'home' : isTogether ? 'second' : 'alternate', made: 0 })
  const worker = await starting
  const stopWorkers = worker ? worker.stop : await inCellOf(home, () => startInside(home, inside ? concerns : []))
  const pool = cells ? poolOfCells(cells, services) : home.pool
  const cellOf = (id: string): OpenServices => (cells?.ofProject(id) as OpenServices | undefined) ?? home
  const anonymous = client(url, null)
  const find = (username: string) =>
    home.pool.maybeOne(sql.type(Account)`select id, role, token_version from users where username = ${username}`)
  /** As a sign-in does, without its hash of a password; an unknown name gives an anonymous client. */
  const signIn = async (username: string) => {
    const user = await find(username)
    return client(url, user && (await issueUserToken(home, user)).token)
  }
  const projectWith: TestApp['projectWith'] = async (actions, name = `project ${++counter}`, neighbour) => {
    const cell = cells && neighbour ? cellOf(neighbour).cell?.name : undefined
    const { id } = (await admin.post('/projects', { name, ...(cell && { cell }) })).body
    const statement = [{ effect: 'Allow', action: actions, resource: [`srn:${id}:*:*`] }]
    const policy = await admin.post('/policies', { document: { statement } })
    assert.equal(policy.status, 201, JSON.stringify(policy.body))
    const key = await admin.post('/project-keys', { project_id: id, policy_ids: [policy.body.id] })
    return { id, key: client(url, key.body.secret), keyId: key.body.id }
  }
  if (options.databaseUrl) await anonymous.post('/users/bootstrap', ADMIN)
  const admin = await signIn(ADMIN.username)
  return {
    url,
    databaseUrl: database.url,
    services,
    home,
    pool,
    servicesOf: id => {
      const of = cellOf(id)
      return of === home ? home : writingInCell(of)
    },
    databaseUrlOf: id => (cellOf(id) === home ? database.url : secondUrl),
    inCellOf: (id, work) => {
      const of = cellOf(id)
      return inCellOf(of, () => work(of))
    },
    async inEachCell(work) {
      const results = []
      for (const { services } of cells?.all() ?? [{ services: home }])
        if (services) results.push(await inCellOf(services, () => work(services)))
      return results
    },
    config,
    admin,
    anonymous,
    logs,
    statements,
    worker,
    as: token => client(url, token),
    project: (name, neighbour) => projectWith(['*'], name, neighbour),
    projectWith,
    rows: (text, values) => pool.any(rawQuery(text, values)) as Promise<readonly any[]>,
    async user(username = `user${++counter}`, policies = []) {
      const made = await admin.post('/users', { username, password: 'a fine password' })
      const ids = []
      for (const document of policies) ids.push((await admin.post('/policies', { document })).body.id)
      if (ids.length > 0) await admin.put(`/users/${made.body.id}/policies`, { policy_ids: ids })
      return { ...(await signIn(username)), id: made.body.id }
    },
    async close() {
      await stopWorkers()
      const differing = secondCell ? await differingCopies(home, secondUrl) : []
      await new Promise(resolve => {
        server.close(resolve)
        server.closeAllConnections()
      })
      await Promise.all([serving.drain(), cells?.drain()])
      await serving.end()
      await cells?.close()
      await home.close()
      await telemetry.close(1000)
      await database.drop()
      assert.deepEqual(differing, [], 'tables with other rows in the second cell than at home')
    },
  }
}

/** Returns services whose writes make IDs of their cell, which requests and workers have from the context of their work. */
const writingInCell = (services: OpenServices): OpenServices => ({
  ...services,
  write: ((...args: Parameters<OpenServices['write']>) =>
    inCellOf(services, () => services.write(...args))) as OpenServices['write'],
})

/** Starts the cells of the profile: home, and the second unless the database was made without it. */
async function startTestCells(
  home: OpenServices,
  secondUrl: string,
  options: Omit<ConstructorParameters<typeof Cells>[1], 'role'>,
): Promise<Cells> {
  const sealed = home.secrets.seal(secondUrl, sealedForCell('second'))
  if (await hasSecondCell(home)) {
    // In the other server copies are started here: a template has neither slots nor subscriptions.
    if (HAS_TWO_SERVERS && !(await home.pool.exists(sql.unsafe`select from cells`)))
      await startCopies(home, { name: 'second', number: 1, url: secondUrl })
    await home.pool.query(sql.unsafe`
      insert into cells (name, number, url) values ('second', 1, ${sealed}) on conflict (name) do update set url = excluded.url`)
  }
  const cells = new Cells(home, { role: 'worker', ...options })
  await cells.start()
  return cells
}

/** Returns the copied tables whose rows in the second cell differ from home, after a wait for the copies. */
async function differingCopies(home: OpenServices, url: string): Promise<string[]> {
  let differing: string[] = []
  const areEqual = async () => {
    differing = (await copiesState(home, { name: 'second', number: 1, url })).differing
    return differing.length === 0
  }
  await eventually(areEqual).catch(error => differing.push(String(error)))
  return differing
}

const hasSecondCell = async ({ pool, config }: OpenServices): Promise<boolean> =>
  HAS_TWO_SERVERS
    ? hasSecondDatabase(config.DATABASE_URL)
    : pool.exists(sql.unsafe`select where to_regnamespace(${CELL_SCHEMA}) is not null`)

/** Runs the work of some concerns in a separate process: a new one where an earlier worker's could make a difference. */
async function startOutside(
  databaseUrl: string,
  env: Record<string, string>,
  concerns: string[],
  config: Config,
  onLine: (line: string) => void,
): Promise<{ pid: number; stop(): Promise<unknown> }> {
  // Other variables than settings are read by libraries, some of them only once.
  const settingsOnly = Object.keys(env).every(name => name in config)
  if (settingsOnly && !env.FAULT_POINTS?.includes('kill')) return runWorker(databaseUrl, env, concerns, onLine)
  const { pid, kill } = await startProcess('worker', databaseUrl, env, concerns, undefined, onLine)
  return { pid, stop: () => kill('SIGTERM') }
}

/** Runs the work of some concerns in this process; returns what ends it. */
async function startInside(services: Services, concerns: readonly string[]): Promise<() => Promise<void>> {
  if (concerns.length === 0) return async () => {}
  const { config, notifications } = services
  const { handlers, schedules, background } = workForConcerns(concerns)
  const workers = await startWorkers({
    services,
    handlers,
    schedules,
    background,
    concurrency: config.WORKER_CONCURRENCY,
    projectShare: config.PROJECT_WORKER_SHARE,
    listen: notifications,
  })
  return async () => {
    await workers.stop(5000)
  }
}

/**
 * Waits until a check returns something truthy, and returns it. The limit ends a wait for what never comes; it is far
 * above what a busy machine needs, and says nothing of how fast something is. A check follows after 20 ms, later after
 * 250: a request every 20 ms costs a waiting test a fifth of a core.
 */
export async function eventually<T>(
  check: () => Promise<T> | T,
  options: { within?: number; every?: number; what?: string } = {},
): Promise<NonNullable<T>> {
  const start = Date.now()
  for (;;) {
    const value = await check()
    if (value) return value as NonNullable<T>
    const waited = Date.now() - start
    if (waited > (options.within ?? 30_000))
      throw new Error(`not seen in time: ${options.what ?? check.toString().slice(0, 200)}`)
    await sleep(options.every ?? Math.min(20 + waited / 8, 250))
  }
}
