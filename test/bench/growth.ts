import type pg from 'pg'
import { createdBy } from '../support/replies.ts'
import { type AgeingDeployment, startAgeing } from './ageing.ts'
import { amount, progress } from './fast.ts'
import { idleWorkers } from './growth-idle.ts'
import { week } from './growth-week.ts'
import { events, messages, runs, subscribe, together, toolTurns, turns } from './growth-work.ts'
import { rounded, walBytes } from './measure.ts'
import type { Row } from './rows.ts'
import { start } from './start.ts'
import { counted } from './turn-load.ts'

/**
 * Bytes that one unit of work leaves in the database, by table; dead rows and sizes of tables after a week; processor time of
 * the database for idle workers. Usage: npm run bench growth [-- --fast]
 */
const UNITS = amount(5000, 500)
/** VACUUM runs after each of them, so that work reuses the space of dead rows as in a deployment. */
const BATCHES = 10
/** Until sweeps have removed rows that are kept for minutes, such as the frames of streams. */
const SETTLED_HOURS = 2
/** Nodes of the larger one of two graphs, whose difference is the cost of a node. */
const NODES = 21
/** Tables that are printed with a unit. */
const SHOWN = 6

/** Bytes by table, with indexes and TOAST. */
type Bytes = ReadonlyMap<string, number>

/** What one unit adds: bytes by table, and bytes of the write-ahead log until it has settled. */
type Growth = { tables: Bytes; wal: number }

const sum = (values: Iterable<number>): number => [...values].reduce((total, value) => total + value, 0)

async function sizesOf(db: pg.Client): Promise<Bytes> {
  await db.query('vacuum')
  const { rows } = await db.query(`
    select coalesce(p.relname, c.relname) as table, sum(pg_total_relation_size(c.oid))::float8 as bytes
    from pg_class c left join pg_inherits i on i.inhrelid = c.oid left join pg_class p on p.oid = i.inhparent
    where c.relkind = 'r' and c.relnamespace in ('public'::regnamespace, 'pgboss'::regnamespace) group by 1`)
  return new Map(rows.map(({ table, bytes }) => [table, bytes]))
}

/** Measures the growth by units that `work` does in batches. */
async function growthOf(
  what: string,
  deployment: AgeingDeployment,
  work: (count: number) => Promise<unknown>,
): Promise<Growth> {
  progress(what)
  const { db } = deployment
  // Leaves the free space in pages that a running deployment has.
  await work(UNITS / BATCHES)
  await deployment.pass(SETTLED_HOURS)
  const before = await sizesOf(db)
  let wal = 0
  for (let batch = 0; batch < BATCHES; batch++) {
    const from = await walBytes(db)
    await work(UNITS / BATCHES)
    await deployment.settle()
    wal += (await walBytes(db)) - from
    await db.query('vacuum')
  }
  await deployment.pass(SETTLED_HOURS)
  const tables = [...(await sizesOf(db))].map(
    ([table, bytes]) => [table, (bytes - (before.get(table) ?? 0)) / UNITS] as const,
  )
  return { tables: new Map(tables.filter(([, bytes]) => bytes !== 0)), wal: wal / UNITS }
}

const divided = ({ tables, wal }: Growth, by: number): Growth => ({
  tables: new Map([...tables].map(([table, bytes]) => [table, bytes / by])),
  wal: wal / by,
})

function difference(one: Growth, other: Growth): Growth {
  const names = new Set([...one.tables.keys(), ...other.tables.keys()])
  const tables = [...names].map(name => [name, (one.tables.get(name) ?? 0) - (other.tables.get(name) ?? 0)] as const)
  return { tables: new Map(tables), wal: one.wal - other.wal }
}

const onlyTables = ({ tables, wal }: Growth, isShown: (table: string) => boolean): Growth => ({
  tables: new Map([...tables].filter(([table]) => isShown(table))),
  wal,
})

function rowsOf(unit: string, { tables, wal }: Growth): Row[] {
  const largest = [...tables].sort(([, one], [, other]) => other - one).slice(0, SHOWN)
  return [
    {
      what: `bytes in the database per ${unit}`,
      value: Math.round(sum(tables.values())),
      unit: 'B',
      note: largest.map(([table, bytes]) => `${table} ${Math.round(bytes)}`).join(', '),
    },
    { what: `write-ahead log per ${unit}`, value: Math.round(wal), unit: 'B' },
  ]
}

/** Measures a turn of bare Express with two writes. */
async function floorGrowth(deployment: AgeingDeployment): Promise<Growth> {
  const { databaseUrl, modelUrl, projectId } = deployment
  const floor = await start('test/bench/floor.ts', { DATABASE_URL: databaseUrl, MODEL_URL: modelUrl })
  floor.child.stdout?.resume()
  try {
    const target = { url: floor.url, path: '/turns', token: '', body: { project_id: projectId, prompt: 'hello' } }
    return await growthOf('turns of the floor', deployment, count => counted(target, count))
  } finally {
    floor.child.kill('SIGKILL')
  }
}

/** Measures changes of an end user, and returns the growth of the audit log per entry. */
async function auditGrowth(deployment: AgeingDeployment): Promise<Growth> {
  const { id } = await createdBy(deployment.key(), '/actors', { name: 'Ann' })
  const { db } = deployment
  const entries = async () => Number((await db.query('select count(*) from audit_entries')).rows[0].count)
  const before = await entries()
  let changes = 0
  const growth = await growthOf('audit entries', deployment, async count => {
    changes += count
    await together(count, async n => {
      const { status } = await deployment.key().patch(`/actors/${id}`, { name: `Ann ${n}` })
      if (status !== 200) throw new Error(`a change answered ${status}`)
    })
  })
  const audit = onlyTables(growth, table => table.startsWith('audit_'))
  return divided({ ...audit, wal: growth.wal }, ((await entries()) - before) / changes)
}

/** Default days after which rows of a table are deleted; others have no expiry. */
const RETENTION: Record<string, number> = {
  events: 30,
  webhook_deliveries: 30,
  audit_entries: 365,
  audit_seal_batches: 365,
  job_common: 7,
}
const TURNS_A_SECOND = 10
const DAY_SECONDS = 86_400
const YEAR_DAYS = 365

/** Estimates the database after a year of turns, from the bytes of one. */
function yearOf(unit: string, { tables }: Growth): Row[] {
  const gigabytes = (daysOf: (table: string) => number) =>
    rounded(sum([...tables].map(([table, bytes]) => bytes * TURNS_A_SECOND * DAY_SECONDS * daysOf(table))) / 1e9, 0)
  return [
    {
      what: `a year of ${TURNS_A_SECOND} a second, estimated, nothing deleted: ${unit}`,
      value: gigabytes(() => YEAR_DAYS),
      unit: 'GB',
    },
    {
      what: `a year of ${TURNS_A_SECOND} a second, estimated, default retention: ${unit}`,
      value: gigabytes(table => Math.min(RETENTION[table] ?? YEAR_DAYS, YEAR_DAYS)),
      unit: 'GB',
    },
  ]
}

/** Measures what units of work leave in the database. */
async function growth(): Promise<Row[]> {
  const deployment = await startAgeing()
  try {
    const floor = await floorGrowth(deployment)
    const turn = await growthOf('turns', deployment, turns(deployment, deployment.agentId, 'hello'))
    const toolTurn = await growthOf('tool turns', deployment, toolTurns(deployment))
    const message = await growthOf('messages', deployment, messages(deployment))
    const [one, many] = [await runs(deployment, 1), await runs(deployment, NODES)]
    const run = await growthOf('runs of one node', deployment, one)
    const long = await growthOf(`runs of ${NODES} nodes`, deployment, many)
    const event = await growthOf('events', deployment, events(deployment))
    await subscribe(deployment)
    const delivered = await growthOf('deliveries', deployment, events(deployment))
    const entry = await auditGrowth(deployment)
    const ratio = sum(turn.tables.values()) / sum(floor.tables.values())
    return [
      ...rowsOf('turn', turn),
      { what: 'bytes per turn, of one row with prompt and answer', value: rounded(ratio), unit: 'x' },
      ...rowsOf('turn with a tool call', toolTurn),
      ...rowsOf('message with its reply', message),
      ...rowsOf('run of one node', run),
      ...rowsOf('further node', divided(difference(long, run), NODES - 1)),
      ...rowsOf('event without a webhook', event),
      ...rowsOf('delivery, with its event', delivered),
      ...rowsOf('delivery, added to its event', difference(delivered, event)),
      // The log of its request has more than the entry.
      rowsOf('audit entry', entry)[0],
      ...yearOf('turn', turn),
      ...yearOf('turn with a tool call', toolTurn),
    ]
  } finally {
    await deployment.close()
  }
}

export async function run(): Promise<Row[]> {
  return [...(await growth()), ...(await week()), ...(await idleWorkers())]
}
