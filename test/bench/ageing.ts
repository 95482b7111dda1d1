import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import pg from 'pg'
import { loadConfig } from '#config.ts'
import { correctSystemClock } from '#core/base/clock.ts'
import { silentLog } from '#core/base/log.ts'
import { loadModules, workForConcerns } from '#core/modules/module.ts'
import { migrate } from '#core/queues/migrate.ts'
import { type OpenServices, openServices } from '#core/services/lifecycle.ts'
import { WORKER_KINDS } from '#core/work/settings.ts'
import { bootstrapAdmin } from '#identity/users/bootstrap.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { startDouble } from '#local/double/server.ts'
import { modules } from '#modules.ts'
import { type Client, client, eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { ADMIN, createDatabase, dropDatabase } from '../support/postgres.ts'
import { createdBy } from '../support/replies.ts'
import { start } from './start.ts'

/**
 * A deployment whose time can be moved: its database has functions `now` and `clock_timestamp` in front of PostgreSQL's,
 * and its processes correct their clocks by the database.
 */
export type AgeingDeployment = {
  db: pg.Client
  projectId: string
  /** Key of the project, and its agents without and with a tool. */
  token: string
  agentId: string
  callingId: string
  modelUrl: string
  databaseUrl: string
  /** URL of the web process, which another one replaces when the time moves. */
  url(): string
  key(): Client
  admin(): Client
  /** URL of a receiver of webhooks. */
  receiverUrl: string
  /** Runs `work` with services of this process at the time of the deployment. */
  withServices<T>(work: (services: OpenServices) => Promise<T>): Promise<T>
  /** Waits until all messages, events, deliveries and usage are processed. */
  settle(): Promise<void>
  /** Moves the time ahead, and does the periodic work that falls into it: each schedule once, and maintenance of the queues. */
  pass(hours: number): Promise<void>
  close(): Promise<void>
}

/** The search path has the functions first; other names in it are found as without it. */
const CLOCK = `
  create schema clock;
  create function clock.now() returns timestamptz language sql stable parallel safe
    as $$ select pg_catalog.now() + pg_catalog.current_setting('clock.ahead')::interval $$;
  create function clock.clock_timestamp() returns timestamptz language sql volatile parallel safe
    as $$ select pg_catalog.clock_timestamp() + pg_catalog.current_setting('clock.ahead')::interval $$`

const HOUR_MS = 3_600_000
const SETTLED_MS = 300_000

async function connect(url: string): Promise<pg.Client> {
  const db = new pg.Client({ connectionString: url })
  await db.connect()
  return db
}

/** Starts a deployment with a web process and a worker of all concerns. */
export async function startAgeing(settings: Record<string, string> = {}): Promise<AgeingDeployment> {
  loadModules(modules)
  const databaseUrl = await createDatabase()
  const name = new URL(databaseUrl).pathname.slice(1)
  const double = await startDouble({})
  const receiver = fork(new URL('receiver.ts', import.meta.url), { stdio: 'inherit' })
  const [{ port }] = (await once(receiver, 'message')) as [{ port: number }]
  const db = await connect(databaseUrl)
  await db.query(CLOCK)
  for (const target of [`alter database "${name}" set`, 'set'])
    await db.query(`${target} search_path = public, clock, pg_catalog`)
  const setAhead = async (hours: number) => {
    for (const target of [`alter database "${name}" set`, 'set'])
      await db.query(`${target} clock.ahead = '${hours} hours'`)
  }
  await setAhead(0)
  const env = {
    ...testEnvironment(databaseUrl),
    LOG_LEVEL: 'info',
    WORKER_CONCURRENCY: '32',
    ORCHESTRATION_WORKER_CONCURRENCY: '32',
    ...settings,
  }
  const config = loadConfig(env)
  await migrate(databaseUrl, { jobRetentionDays: config.JOB_RETENTION_DAYS })

  let ahead = 0
  let processes: { url: string; child: ChildProcess }[] = []
  const startProcesses = async () => {
    processes = await Promise.all([start('src/web.ts', env), start('jobs/worker.ts', env)])
    for (const { child } of processes) child.stdout?.resume()
  }
  const stopProcesses = async () => {
    const stopped = processes
    processes = []
    await Promise.all(
      stopped.map(async ({ child }) => {
        const ended = once(child, 'exit')
        child.kill('SIGTERM')
        await ended
      }),
    )
  }
  const withServices: AgeingDeployment['withServices'] = async work => {
    correctSystemClock(ahead * HOUR_MS)
    const services = await openServices(config, { log: silentLog(), role: 'cli' })
    try {
      return await work(services)
    } finally {
      await services.close()
      correctSystemClock(0)
    }
  }
  const settle = () => settled(db)
  const close = async () => {
    for (const { child } of processes) child.kill('SIGKILL')
    receiver.disconnect()
    await db.end()
    await double.close()
    await dropDatabase(name)
  }
  try {
    const token = await withServices(async services => {
      await bootstrapAdmin(services, ADMIN)
      const { rows } = await db.query('select id, role, token_version from users')
      return (await issueUserToken(services, rows[0])).token
    })
    await startProcesses()
    const made = await populate(client(processes[0].url, token), double.url)
    return {
      db,
      databaseUrl,
      modelUrl: `${double.url}/v1`,
      receiverUrl: `http://127.0.0.1:${port}/`,
      ...made,
      url: () => processes[0].url,
      key: () => client(processes[0].url, made.token),
      admin: () => client(processes[0].url, token),
      withServices,
      settle,
      async pass(hours) {
        await settle()
        await stopProcesses()
        ahead += hours
        await setAhead(ahead)
        await startProcesses()
        await withServices(async services => {
          const instant = new Date(Date.now() + ahead * HOUR_MS)
          const { schedules } = workForConcerns(WORKER_KINDS)
          await services.queues.send(schedules.map(({ queue, data }) => ({ queue, data: data(instant) })))
          await settle()
          await services.queues.boss.supervise()
        })
      },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

/** Creates a project with an agent without tools and one with a tool. */
async function populate(admin: Client, doubleUrl: string) {
  const { id: projectId } = await createdBy(admin, '/projects', { name: 'growth' })
  const made = async (path: string, body: object): Promise<string> =>
    (await createdBy(admin, path, { project_id: projectId, ...body })).id
  const statement = [{ effect: 'Allow', action: ['*'], resource: [`srn:${projectId}:*:*`] }]
  const { id: policy } = await createdBy(admin, '/policies', { document: { statement } })
  const { secret: token } = await createdBy(admin, '/project-keys', { project_id: projectId, policy_ids: [policy] })
  const ai_provider_id = await made('/ai-providers', {
    name: 'double',
    provider: 'custom',
    default_model: 'double-1',
    base_url: `${doubleUrl}/v1`,
  })
  const tool_id = await made('/tools', { name: 'probe', execute: { method: 'GET', url: `${doubleUrl}/healthz` } })
  return {
    projectId,
    token: token as string,
    agentId: await made('/agents', { name: 'agent', ai_provider_id }),
    callingId: await made('/agents', { name: 'calling', ai_provider_id, tool_bindings: [{ tool_id }] }),
  }
}

/** Work that is due or in progress. */
const UNSETTLED = `
  select (select count(*) from pgboss.job_common
      where state < 'completed' and start_after <= now() and name not like '%.dead')::int as messages,
    (select count(*) from events where dispatched_at is null)::int as events,
    (select count(*) from webhook_deliveries where status = 'queued')::int as deliveries,
    (select count(*) from unfolded_usage)::int as usage`

async function settled(db: pg.Client): Promise<void> {
  let quiet = 0
  await eventually(
    async () => {
      const { rows } = await db.query(UNSETTLED)
      const isQuiet = Object.values(rows[0]).every(count => count === 0)
      quiet = isQuiet ? quiet + 1 : 0
      // The end of some work starts other work.
      return quiet === 5
    },
    { within: SETTLED_MS, every: 200, what: 'the end of all work' },
  )
}
