import type { ChildProcess } from 'node:child_process'
import { loadConfig } from '#config.ts'
import { inCell } from '#core/base/current-cell.ts'
import { newId } from '#core/base/ids.ts'
import { silentLog } from '#core/base/log.ts'
import { openPool } from '#core/db/pool.ts'
import { rawQuery, sql } from '#core/db/sql.ts'
import { migrate } from '#core/queues/migrate.ts'
import { sealedForCell } from '#core/services/cell-directory.ts'
import { startCopies } from '#core/services/copies.ts'
import { openServices } from '#core/services/lifecycle.ts'
import { issueUserToken } from '#identity/users/sign-in.ts'
import { ADMIN, type Client, client, eventually } from '../support/app.ts'
import { testEnvironment } from '../support/environment.ts'
import { cloneTemplate } from '../support/postgres.ts'
import { createdBy } from '../support/replies.ts'
import { amount, progress } from './fast.ts'
import { exactTime, median, percentile, rounded } from './measure.ts'
import type { Row } from './rows.ts'
import { start } from './start.ts'

/**
 * Requests to deployments with several cells next to the same requests to one with one database and the same rows. The cells are schemas of
 * one database: numbers include what a cell costs the processes, and not what a further server gains.
 */
const PROJECTS = 4
/** Actors of each project. */
const ACTORS = amount(20_000, 2000)
const SAMPLES = amount(1000, 200)
const WARM_UP = 50

/** Requests of a round in which processor time is measured, and rounds. */
const CALLS = 200
const ROUNDS = amount(15, 5)

type Deployment = {
  name: string
  child: ChildProcess
  admin: Client
  /** The last project, in the last cell, its key, and one of its actors. */
  project: string
  key: Client
  actor: string
  close(): Promise<void>
}

/** The URL of a cell in a schema of the database of home. */
function urlOf(home: string, number: number): string {
  const url = new URL(home)
  if (number > 0) url.searchParams.set('schema', `cell_${number}`)
  return url.href
}

/** Starts a deployment whose projects are in turn in its cells; with `cells` 0 it has one database and CELLS is not set. */
async function startDeployment(name: string, cells: number): Promise<Deployment> {
  progress(name)
  const { url: home, drop } = await cloneTemplate({ admin: true })
  const env = testEnvironment(home)
  const services = await openServices(loadConfig(env), { log: silentLog(), role: 'cli' })
  for (let number = 1; number < cells; number++) {
    const cell = { name: `cell-${number}`, number, url: urlOf(home, number) }
    await migrate(cell.url)
    await startCopies(services, cell)
    const sealed = services.secrets.seal(cell.url, sealedForCell(cell.name))
    await services.pool.query(
      rawQuery('insert into cells (name, number, url) values ($1, $2, $3)', [cell.name, number, sealed]),
    )
  }
  const settings = { LOG_LEVEL: 'info', DATABASE_POOL_MAX: '20', ...(cells > 0 ? { CELLS: 'true' } : {}) }
  const { url, child } = await start('src/web.ts', { ...env, ...settings })
  child.stdout?.resume()
  const [account] = await services.pool.any(
    rawQuery('select id, role, token_version from users where username = $1', [ADMIN.username]),
  )
  const admin = client(url, (await issueUserToken(services, account as never)).token)
  await eventually(async () => (await admin.get('/system/cells')).body.data.every((cell: any) => cell.reachable))
  let last = { project: '', actor: '' }
  for (let index = 0; index < PROJECTS; index++) {
    const number = index % Math.max(cells, 1)
    const place = cells > 0 ? { cell: number === 0 ? 'home' : `cell-${number}` } : {}
    const { id } = await createdBy(admin, '/projects', { name: `project ${index}`, ...place })
    last = { project: id, actor: await addActors(urlOf(home, number), number, id) }
  }
  const { total } = (await admin.get('/actors?limit=1')).body
  if (total !== PROJECTS * ACTORS) throw new Error(`${name} lists ${total} actors`)
  const { secret } = await createdBy(admin, '/project-keys', { project_id: last.project })
  return {
    name,
    child,
    admin,
    ...last,
    key: client(url, secret),
    async close() {
      const ended = new Promise(resolve => child.once('exit', resolve))
      child.kill('SIGKILL')
      await ended
      await services.close()
      await drop()
    },
  }
}

/** Inserts the actors of a project into its cell, and returns the ID of one. */
async function addActors(databaseUrl: string, number: number, project: string): Promise<string> {
  const ids = inCell(number, () => Array.from({ length: ACTORS }, () => newId('actor')))
  const pool = await openPool({ databaseUrl, connections: 1 })
  try {
    await pool.query(sql.unsafe`
      insert into actors (id, project_id, name, created_at)
      select id, ${project}, 'actor ' || n, now() - n * interval '1 second'
      from unnest(${sql.array(ids, 'text')}) with ordinality a (id, n)`)
    await pool.query(sql.unsafe`vacuum analyze actors`)
  } finally {
    await pool.end()
  }
  return ids[0]
}

/** A request to a deployment, and the target of its median as a multiple of that with one database. */
const CALLED: Record<string, { target: string; call(of: Deployment): [as: Client, path: string] }> = {
  'GET by id with a key': { target: '<= 1.2', call: ({ key, actor }) => [key, `/actors/${actor}`] },
  'GET by id as a user': { target: '<= 1.2', call: ({ admin, actor }) => [admin, `/actors/${actor}`] },
  'list of 50 of one project': {
    target: '<= 1.2',
    call: ({ admin, project }) => [admin, `/actors?project_id=${project}&limit=50`],
  },
  'list of 50 of all projects': { target: '<= 2', call: ({ admin }) => [admin, '/actors?limit=50'] },
}

async function time([as, path]: [as: Client, path: string]): Promise<number> {
  const begin = performance.now()
  const { status, body } = await as.get(path)
  const took = performance.now() - begin
  if (status !== 200) throw new Error(`${path}: ${JSON.stringify(body)}`)
  return took
}

/** Times of a request to each deployment, in turns: a machine that slows down slows all. */
async function compare(what: string, [floor, ...others]: Deployment[]): Promise<Row[]> {
  progress(what)
  const { call, target } = CALLED[what]
  const all = [floor, ...others]
  const times = new Map<Deployment, number[]>(all.map(each => [each, []]))
  for (let n = -WARM_UP; n < SAMPLES; n++)
    for (let place = 0; place < all.length; place++) {
      // Each deployment is the first one in turn.
      const each = all[(place + n + WARM_UP) % all.length]
      const took = await time(call(each))
      if (n >= 0) times.get(each)?.push(took)
    }
  const at = (of: Deployment, share: number) => percentile(times.get(of) as number[], share)
  return others.flatMap(each =>
    [0.5, 0.99].map(share => ({
      what: `${what}, ${each.name}, p${share * 100}`,
      value: rounded(at(each, share) / at(floor, share), 2),
      unit: 'x',
      target: share === 0.5 ? target : undefined,
      note: `${at(each, share).toFixed(2)} against ${at(floor, share).toFixed(2)} ms`,
    })),
  )
}

/** Processor time of the web process for a request, in rounds with one deployment after the other. */
async function compareProcessorTime(what: string, floor: Deployment, other: Deployment, target: string): Promise<Row> {
  progress(`processor time, ${what}`)
  const costOf = async (of: Deployment) => {
    const pid = of.child.pid as number
    const before = exactTime(pid)
    for (let n = 0; n < CALLS; n++) await time(CALLED[what].call(of))
    return (exactTime(pid) - before) / CALLS
  }
  const [ours, theirs]: number[][] = [[], []]
  for (let round = 0; round < ROUNDS; round++) {
    theirs.push(await costOf(floor))
    ours.push(await costOf(other))
  }
  return {
    what: `processor time of web, ${what}, ${other.name}`,
    value: rounded(median(ours) / median(theirs), 3),
    unit: 'x',
    target,
    note: `${median(ours).toFixed(3)} against ${median(theirs).toFixed(3)} ms`,
  }
}

export async function run(): Promise<Row[]> {
  const deployments: Deployment[] = []
  try {
    for (const [name, cells] of [
      ['one database', 0],
      ['1 cell', 1],
      ['2 cells', 2],
      ['4 cells', 4],
    ] as const)
      deployments.push(await startDeployment(name, cells))
    const rows: Row[] = []
    for (const what of Object.keys(CALLED)) rows.push(...(await compare(what, deployments)))
    const [floor, one] = deployments
    rows.push(await compareProcessorTime('GET by id with a key', floor, one, '<= 1.05'))
    rows.push(await compareProcessorTime('list of 50 of all projects', floor, one, '<= 1.2'))
    return rows
  } finally {
    for (const each of deployments) await each.close()
  }
}
