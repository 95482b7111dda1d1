import type { ChildProcess } from 'node:child_process'
import { pathToFileURL } from 'node:url'
import autocannon from 'autocannon'
import pg from 'pg'
import { DatabaseClient } from '#core/db/pg-client.ts'
import { rawQuery } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { createDatabase } from '../support/postgres.ts'
import { costRows, dbosProgram, floorProgram, postTo } from './costs.ts'
import type { Row } from './rows.ts'
import { start } from './start.ts'

export { start } from './start.ts'

/**
 * Requests a second of one web process next to bare Express with the same statements, both on this machine and in this
 * run. Usage: node test/bench/http.ts [seconds a case, default 6]
 */
const CONNECTIONS = 16
const PROJECTS = 4
/** Actors of each project. */
const ACTORS = 20_000

/** Resident memory of a process in MiB. */
export async function memory(child: ChildProcess): Promise<number> {
  const { readFile } = await import('node:fs/promises')
  const status = await readFile(`/proc/${child.pid}/status`, 'utf8')
  return Math.round(Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]) / 1024)
}

type Sent = { method?: 'GET' | 'POST'; headers?: Record<string, string>; body?: string }

export async function rate(
  options: { url: string; requests?: (Sent & { path: string })[] } & Sent,
  seconds: number,
  expect: number,
): Promise<number> {
  const run = (duration: number) => autocannon({ connections: CONNECTIONS, duration, ...options } as autocannon.Options)
  await run(1)
  const result = await run(seconds)
  const wrong =
    result.requests.total - (result.statusCodeStats as Record<string, { count: number }>)[String(expect)]?.count
  if (wrong !== 0)
    throw new Error(`${options.url}: ${wrong} answers were not ${expect}: ${JSON.stringify(result.statusCodeStats)}`)
  return result.requests.average
}

export async function run(seconds = 6): Promise<Row[]> {
  const app = await startApp()
  const env = { ...testEnvironment(app.databaseUrl), LOG_LEVEL: 'warn', DATABASE_POOL_MAX: '20' }
  // Keys without policies: what policies cost is measured by itself.
  const unlimited = async () => {
    const project = await app.project()
    const { body } = await app.admin.post('/project-keys', { project_id: project.id })
    return { id: project.id, key: app.as(body.secret), keyId: body.id as string }
  }
  // Several projects, as a deployment has them: one alone holds at most a third of the connections of a process.
  const projects = await Promise.all(Array.from({ length: PROJECTS }, unlimited))
  const quotaed = await Promise.all(Array.from({ length: PROJECTS }, unlimited))
  const [[plain], [limited]] = [projects, quotaed]
  for (const project of [...projects, ...quotaed]) {
    for (let n = 0; n < 60; n++) await project.key.post('/actors', { name: `actor ${n}`, external_id: `e${n}` })
    await app.services.pool.query(
      rawQuery(
        `insert into actors (id, project_id, name, created_at)
         select 'actor_' || $1 || n, $1, 'actor ' || n, now() - interval '1 day' from generate_series(1, $2::int) n`,
        [project.id, ACTORS - 60],
      ),
    )
  }
  await app.services.pool.query(rawQuery('vacuum analyze actors'))
  for (const { id } of quotaed)
    await app.admin.post('/quotas', {
      project_id: id,
      scope: 'project',
      metric: 'requests',
      window: 'rolling_24h',
      limit: 1_000_000_000,
    })
  const actorOf = async (project: typeof plain) => (await project.key.get('/actors?limit=1')).body.data[0].id as string
  const free = await Promise.all(projects.map(actorOf))
  const counted = await Promise.all(quotaed.map(actorOf))
  const trips = await roundTrips(app, plain, limited, free[0], counted[0])

  const costs = await costRows(
    'create of an actor',
    {
      processes: { web: { script: 'src/web.ts' } },
      env,
      call: url => postTo(`${url}/api/v1/actors`, { name: 'made' }, plain.key.token as string),
    },
    {
      floor: floorProgram(env, url => postTo(`${url}/actors`, { project_id: plain.id, name: 'made' })),
      'DBOS, one step': dbosProgram({ DATABASE_URL: await createDatabase() }, '/step'),
    },
  )

  // LOG_LEVEL error would hide the line that contains the port.
  const web = await start('src/web.ts', { ...env, LOG_LEVEL: 'info' })
  const floor = await start('test/bench/floor.ts', env)
  web.child.stdout?.resume()
  /** The same request to each project in turn. */
  const each = (of: typeof projects, path: (index: number) => string, more: Sent = {}) => ({
    url: web.url,
    requests: of.map(({ key }, index) => ({
      ...more,
      path: `/api/v1${path(index)}`,
      headers: { ...more.headers, authorization: `Bearer ${key.token}` },
    })),
  })
  const rows: Row[] = [...costs]
  const compare = async (
    what: string,
    target: number,
    trip: number,
    ours: () => Promise<number>,
    theirs: () => Promise<number>,
  ) => {
    // Alternating halves: a machine that slows down slows both.
    const [a, b, c, d] = [await theirs(), await ours(), await theirs(), await ours()]
    const [base, got] = [(a + c) / 2, (b + d) / 2]
    rows.push({
      what,
      value: Number((got / base).toFixed(2)),
      unit: 'x',
      target: `>= ${target}`,
      note: `${Math.round(got)}/s against ${Math.round(base)}/s; ${trip} round trips`,
    })
  }
  const half = seconds / 2
  try {
    const get = (id: string) => () => rate({ url: `${floor.url}/actors/${id}` }, half, 200)
    await compare(
      'GET one actor, no quota',
      0.55,
      trips.get,
      () =>
        rate(
          each(projects, n => `/actors/${free[n]}`),
          half,
          200,
        ),
      get(free[0]),
    )
    await compare(
      'GET one actor, requests quota in force',
      0.45,
      trips.getCounted,
      () =>
        rate(
          each(quotaed, n => `/actors/${counted[n]}`),
          half,
          200,
        ),
      get(counted[0]),
    )
    await compare(
      'list of 50 of 20,000 actors',
      0.6,
      trips.list,
      () =>
        rate(
          each(projects, () => '/actors?limit=50'),
          half,
          200,
        ),
      () => rate({ url: `${floor.url}/actors?project_id=${plain.id}` }, half, 200),
    )
    const json = { 'content-type': 'application/json' }
    const create = () =>
      rate(
        each(projects, () => '/actors', { method: 'POST', headers: json, body: JSON.stringify({ name: 'made' }) }),
        half,
        201,
      )
    const insert = (path: string) => () =>
      rate(
        {
          url: `${floor.url}${path}`,
          method: 'POST',
          headers: json,
          body: JSON.stringify({ project_id: plain.id, name: 'made' }),
        },
        half,
        201,
      )
    await compare('create an actor, of its rows in one transaction', 0.75, trips.create, create, insert('/actors'))
    await compare('create an actor, of a bare insert', 0.3, trips.create, create, insert('/actors/bare'))
    rows.push({ what: 'memory of web after that load', value: await memory(web.child), unit: 'MiB', target: '< 200' })
  } finally {
    web.child.kill('SIGKILL')
    floor.child.kill('SIGKILL')
    await app.close()
  }
  return rows
}

/** Round trips of one request each, counted at the driver: everything that waits for the database's answer. */
async function roundTrips(
  app: Awaited<ReturnType<typeof startApp>>,
  plain: Awaited<ReturnType<typeof app.project>>,
  limited: typeof plain,
  free: string,
  counted: string,
) {
  const count = countRoundTrips()
  const of = async (call: () => Promise<{ status: number }>) => {
    await call()
    await new Promise(resolve => setTimeout(resolve, 200))
    const before = count.value
    await call()
    return count.value - before
  }
  const trips = {
    get: await of(() => plain.key.get(`/actors/${free}`)),
    getCounted: await of(() => limited.key.get(`/actors/${counted}`)),
    list: await of(() => plain.key.get('/actors?limit=50')),
    create: await of(() => plain.key.post('/actors', { name: 'counted' })),
  }
  count.stop()
  return trips
}

/**
 * Counts every statement that the application's clients in this process send, begin and commit included; not the wake-ups, of which many
 * commits share one.
 */
export function countStatements(): { texts: string[]; readonly value: number; stop(): void } {
  const original = DatabaseClient.prototype.query
  const texts: string[] = []
  DatabaseClient.prototype.query = function (...args) {
    const [statement] = args
    if (statement.name !== 'notify') texts.push(typeof statement === 'string' ? statement : statement.text)
    return original.apply(this, args)
  }
  return {
    texts,
    get value() {
      return texts.length
    },
    stop: () => {
      DatabaseClient.prototype.query = original
    },
  }
}

/** Counts how often any pg client of this process waits for an answer. */
export function countRoundTrips(): { value: number; stop(): void } {
  const wire = (pg as unknown as { Connection: { prototype: Record<'sync' | 'query', (...args: unknown[]) => void> } })
    .Connection.prototype
  const { sync, query } = wire
  const counter = { value: 0, stop: () => void Object.assign(wire, { sync, query }) }
  for (const [name, send] of Object.entries({ sync, query }))
    wire[name as 'sync'] = function (this: unknown, ...args) {
      counter.value += 1
      send.apply(this, args)
    }
  return counter
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  console.table(await run(process.argv[2] ? Number(process.argv[2]) : undefined))
  process.exit(0)
}
