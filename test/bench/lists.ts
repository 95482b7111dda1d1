import pg from 'pg'
import { rawQuery } from '#core/db/sql.ts'
import { type Client, startApp, type TestApp, type TestProject } from '../support/app.ts'
import { median, rounded } from './measure.ts'
import type { Row } from './rows.ts'

/** Lists of a project with this many rows in each table, all in one webhook and one conversation. */
const ROWS = Number(process.env.LISTS_ROWS ?? 1_000_000)
const REQUESTS = 9
const DEEP = Math.floor(ROWS * 0.9)

/** Separated by a second, the last one now; every tenth is of another team, status and name. */
const fill = (project: string): string[] => [
  `insert into ai_providers (id, project_id, name, provider, default_model) values ('p', '${project}', 'p', 'openai', 'm')`,
  `insert into agents (id, project_id, ai_provider_id) values ('a', '${project}', 'p')`,
  `insert into traces (id, project_id, agent_id) values ('t', '${project}', 'a')`,
  `insert into webhooks (id, project_id, name, url, events, sealed_secret)
   values ('wh_00000000000000000000000000', '${project}', 'w', 'http://127.0.0.1:1/', '{}', '')`,
  `insert into conversations (id, project_id, message_count) values ('conv_00000000000000000000000000', '${project}', ${ROWS})`,
  ...[
    `actors (id, project_id, name, tags, created_at)
     select 'actor_' || key, '${project}', 'name ' || n, jsonb_build_object('team', team), at`,
    `generations (id, project_id, agent_id, trace_id, status, authority, output, created_at, updated_at)
     select 'gen_' || key, '${project}', 'a', 't', case team when 'red' then 'failed' else 'completed' end, '{}',
       jsonb_build_object('model', 'm', 'content', repeat('text ', 20)), at, at`,
    `events (id, project_id, name, resource_type, resource_id, envelope, created_at, dispatched_at)
     select 'evt_' || key, '${project}', 'actors.' || team, 'actor', 'actor_' || key,
       jsonb_build_object('id', 'evt_' || key, 'data', repeat('data ', 100)), at, at`,
    `audit_entries (id, project_id, principal_type, principal_id, action, resource_srn, status, created_at)
     select 'audit_' || key, '${project}', 'user', 'user', 'actors:CreateActor', 'srn:x', case team when 'red' then 403 else 201 end, at`,
    `webhook_deliveries (id, webhook_id, project_id, event_id, event_type, status, created_at)
     select 'whd_' || key, 'wh_00000000000000000000000000', '${project}', 'evt_' || key, 'actors.' || team,
       case team when 'red' then 'failed' else 'completed' end, at`,
    `conversation_messages (conversation_id, document_id, position, role, created_at)
     select 'conv_00000000000000000000000000', 'doc_' || key, n, case team when 'red' then 'assistant' else 'user' end, at`,
  ].map(
    into => `
      insert into ${into} from (
        select n, lpad(n::text, 26, '0') as key, case when n % 10 = 0 then 'red' else 'blue' end as team,
          now() - (${ROWS} - n) * interval '1 second' as at
        from generate_series(1, ${ROWS}) n) r`,
  ),
]

const TABLES = ['actors', 'generations', 'events', 'audit_entries', 'webhook_deliveries', 'conversation_messages']

/** The page with its total as `count(*) over ()` gives it. */
const windowed = (table: string, where: string, offset: number): string =>
  table === 'conversation_messages'
    ? `select m.*, count(*) over () as total from ${table} m where ${where} order by position limit 50 offset ${offset}`
    : `select t.*, page.total from (
         select t.id as key, count(*) over () as total from ${table} t where ${where}
         order by t.created_at desc, t.id desc limit 50 offset ${offset}) page
       join ${table} t on t.id = page.key order by t.created_at desc, t.id desc`

async function time(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now()
  await work()
  return performance.now() - start
}

async function request(as: Client, path: string): Promise<void> {
  const { status, body } = await as.get(path)
  if (status !== 200) throw new Error(`${path}: ${JSON.stringify(body)}`)
}

export async function run(): Promise<Row[]> {
  const app = await startApp()
  try {
    const project = await app.project()
    await load(app.databaseUrl, project.id)
    return [...(await whole(app, project)), ...(await narrowed(app, project.id)), ...(await triggerCosts(app))]
  } finally {
    await app.close()
  }
}

/** Without triggers, foreign keys above all: with them a table takes a minute. */
async function load(databaseUrl: string, project: string): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl })
  await client.connect()
  await client.query('set session_replication_role = replica')
  for (const text of fill(project)) await client.query(text)
  for (const table of TABLES) {
    const scope = table === 'webhook_deliveries' ? 'wh_00000000000000000000000000' : project
    await client.query('insert into row_count_shards values ($1, $2, 1000, $3)', [scope, table, ROWS])
    await client.query(`vacuum analyze ${table}`)
  }
  await client.end()
}

const PATHS: Record<string, string> = {
  actors: '/actors?',
  generations: '/generations?',
  events: '/events?',
  audit_entries: '/audit-log?',
  webhook_deliveries: '/webhook-deliveries?webhook_id=wh_00000000000000000000000000&',
  conversation_messages: '/conversations/conv_00000000000000000000000000/messages?',
}

/** The newest page with its total, for a caller who sees the whole project. */
async function whole(app: TestApp, { id, key }: TestProject): Promise<Row[]> {
  const rows: Row[] = []
  for (const table of TABLES) {
    const times: number[] = []
    for (let n = 0; n < REQUESTS * 3; n++) times.push(await time(() => request(key, `${PATHS[table]}limit=50`)))
    rows.push({
      what: `first page of ${table}, p50`,
      value: rounded(median(times)),
      unit: 'ms',
      target: '< 15',
      note: `${ROWS} rows`,
    })
  }
  return [...rows, await ratio(app, 'deep page of actors', key, 'actors', '', `t.project_id = '${id}'`, DEEP, '>= 1')]
}

/** How many times as long the statement with `count(*) over ()` takes as the request; in turns, the medians of both. */
async function ratio(
  app: TestApp,
  what: string,
  as: Client,
  table: string,
  query: string,
  where: string,
  offset = 0,
  target = '>= 3',
): Promise<Row> {
  const ours: number[] = []
  const theirs: number[] = []
  const old = windowed(table, where, offset)
  for (let n = 0; n < REQUESTS; n++) {
    theirs.push(await time(() => app.services.pool.any(rawQuery(old))))
    ours.push(await time(() => request(as, `${PATHS[table]}limit=50&offset=${offset}&${query}`)))
  }
  const [base, got] = [median(theirs), median(ours)]
  return {
    what,
    value: Number((base / got).toFixed(1)),
    unit: 'x',
    target,
    note: `${base.toFixed(0)} ms with count(*) over (), ${got.toFixed(0)} ms now`,
  }
}

/** Totals that are counted. */
async function narrowed(app: TestApp, projectId: string): Promise<Row[]> {
  const here = { effect: 'Allow', action: ['*'], resource: [`srn:${projectId}:*:*`] }
  const user = async (...statement: object[]) => app.user(undefined, [{ statement }])
  const every = await user(here)
  const team = { StringEquals: { 'svc:ResourceTag/team': 'red' } }
  const red = await user({ ...here, condition: team })
  const notRed = await user(here, { ...here, effect: 'Deny', condition: team })
  const notOne = await user(here, { ...here, effect: 'Deny', resource: [`srn:${projectId}:*:x`] })
  const listed = (table: string): string =>
    table === 'webhook_deliveries'
      ? `t.webhook_id = 'wh_00000000000000000000000000'`
      : table === 'conversation_messages'
        ? `m.conversation_id = 'conv_00000000000000000000000000'`
        : `t.project_id = '${projectId}'`
  const cases: [
    what: string,
    as: Client,
    table: string,
    query: string,
    where: string,
    offset?: number,
    target?: string,
  ][] = [
    ['actors of a tag, 1 in 10', every, 'actors', 'tags[team]=red', `t.tags @> '{"team": "red"}'`],
    ['actors of a tag, 9 in 10', every, 'actors', 'tags[team]=blue', `t.tags @> '{"team": "blue"}'`],
    ['actors by a part of the name, all', every, 'actors', 'name=name', `t.name ilike '%name%'`],
    ['actors by a part of the name, 100', every, 'actors', 'name=9999', `t.name ilike '%9999%'`],
    ['generations of a status, 9 in 10', every, 'generations', 'status=completed', `t.status = any('{completed}')`],
    ['generations of a status, 1 in 10', every, 'generations', 'status=failed', `t.status = any('{failed}')`],
    ['events since 2000', every, 'events', 'from=2000-01-01', `t.created_at >= '2000-01-01'`],
    ['events of a name, 9 in 10', every, 'events', 'event=actors.blue', `t.name = 'actors.blue'`],
    ['audit entries of a status, 9 in 10', every, 'audit_entries', 'status=201', 't.status = 201'],
    [
      'deliveries of a status, 9 in 10',
      every,
      'webhook_deliveries',
      'status=completed',
      `t.status = any('{completed}')`,
    ],
    ['messages of a role, 9 in 10', every, 'conversation_messages', 'role=user', `m.role = any('{user}')`],
    ['policy: actors of a tag, 1 in 10', red, 'actors', '', `(t.tags ->> 'team') = 'red'`],
    ['policy: actors without a tag, 9 in 10', notRed, 'actors', '', `((t.tags ->> 'team') = 'red') is not true`],
    ['policy: all generations but one', notOne, 'generations', '', `(t.id = 'x') is not true`],
    ['deep page of that', notOne, 'generations', '', `(t.id = 'x') is not true`, DEEP, '>= 0.9'],
    [
      'deep page of actors of a tag',
      every,
      'actors',
      'tags[team]=red',
      `t.tags @> '{"team": "red"}'`,
      DEEP / 10,
      '>= 0.9',
    ],
  ]
  const rows: Row[] = []
  for (const [what, as, table, query, where, offset, target] of cases)
    rows.push(
      await ratio(
        app,
        what,
        as,
        table,
        `project_id=${projectId}&${query}`,
        `${listed(table)} and ${where}`,
        offset,
        target,
      ),
    )
  return rows
}

const INSERTS = 3000

/** The cost that counting adds to a statement that writes one row, in a separate transaction, at the server. */
async function triggerCosts(app: TestApp): Promise<Row[]> {
  const { id } = await app.project()
  const { pool } = app.services
  await pool.query(
    rawQuery(`
    create procedure write_rows(mark text) language plpgsql as $$ begin
      for n in 1..${INSERTS} loop
        insert into actors (id, project_id, name) values (mark || n, '${id}', 'n');
        commit;
      end loop;
    end $$`),
  )
  const took: Record<string, number> = { enable: Number.POSITIVE_INFINITY, disable: Number.POSITIVE_INFINITY }
  for (let round = 0; round < 4; round++)
    for (const state of ['enable', 'disable']) {
      await pool.query(rawQuery(`alter table actors ${state} trigger row_counts_inserted`))
      const ms = await time(() => pool.query(rawQuery(`call write_rows('${state}${round}')`)))
      took[state] = Math.min(took[state], (ms * 1000) / INSERTS)
    }
  return [
    {
      what: 'counting, a writing statement',
      value: Number((took.enable - took.disable).toFixed(1)),
      unit: 'µs',
      target: '< 40',
      note: `${took.enable.toFixed(1)} against ${took.disable.toFixed(1)} µs`,
    },
  ]
}
