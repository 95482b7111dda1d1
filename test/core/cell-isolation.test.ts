import assert from 'node:assert/strict'
import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { kinds } from '#core/api/kind.ts'
import { type Operation, operations } from '#core/api/operation.ts'
import { rawQuery } from '#core/db/sql.ts'
import { END_USER_SCOPES } from '#core/iam/caller.ts'
import { type Client, eventually, type TestApp } from '../support/app.ts'
import { startCells } from '../support/cells.ts'
import { copiedId, copyProjects, moveCopies } from '../support/copied-projects.ts'
import { createBody, describedOperations, type Ids, randomOf, withoutSharing } from '../support/fuzz.ts'
import { populate } from '../support/populate.ts'
import { CELL_SCHEMA } from '../support/postgres.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'

type Json = Record<string, any>

/** Position of the marks of copies in IDs: their first characters are the number of the cell. */
const BEFORE = 10

/**
 * Projects with one record of every kind, by the marks in the IDs of their records and in their contents. In each cell there is one
 * with callers, and another that no caller may reach.
 */
const HOME = 'g00zzz0'
const SECOND = 'g0gzzz0'
const HOME_FOREIGN = 'g00zzz1'
const SECOND_FOREIGN = 'g0gzzz1'
const MARKS = [HOME, SECOND, HOME_FOREIGN, SECOND_FOREIGN]

/** Marks of IDs that no record has: of home, of the second cell, and of a cell that does not exist. */
const HOME_UNKNOWN = 'g00yyy0'
const SECOND_UNKNOWN = 'g0gyyy0'
const UNKNOWN = [HOME_UNKNOWN, SECOND_UNKNOWN, 'g2gyyy0']

const TARGETS = [HOME_FOREIGN, SECOND_FOREIGN, ...UNKNOWN]

/**
 * Operations that answer differently for IDs of different cells, in a request with IDs of the caller's project: it is executed in the
 * cell of one of them. Existing and unknown IDs of a cell are answered alike, so a reply has no more than the number in the ID.
 */
const BY_CELL = new Set([
  'acceptShare',
  'createExport',
  'createMemory',
  'createMemoryEntry',
  'createMemoryRule',
  'getShare',
  'listShareReferences',
  'putDatasetItem',
  'putMessageFeedback',
  'revokeShare',
  'startRun',
  'submitAgentToolOutputs',
  'updateDatasetItem',
  'updateSessionNote',
])

/** Operations for which an existing record differs from an unknown one, as in one database: by targets that are answered alike. */
const BY_EXISTENCE: Record<string, (mark: string) => readonly (readonly string[])[]> = {
  // A grantee of the publisher's cell must be a project; others are refused by their number.
  createShare: mark => [mark === HOME ? [SECOND_FOREIGN, SECOND_UNKNOWN] : [HOME_FOREIGN, HOME_UNKNOWN]],
  // Public: callers without a signature have its URL, which has the ID.
  callTriggerHook: () => [[HOME_FOREIGN, SECOND_FOREIGN], UNKNOWN],
}

const groupsOf = ({ id }: Operation, mark: string): readonly (readonly string[])[] =>
  BY_EXISTENCE[id]?.(mark) ??
  (BY_CELL.has(id)
    ? [
        [HOME_FOREIGN, HOME_UNKNOWN],
        [SECOND_FOREIGN, SECOND_UNKNOWN],
      ]
    : [TARGETS])

const ID = /[a-z]+(?:_[a-z]+)*_[0-9a-hjkmnp-tv-z]{26}/g
const MARK = /g0[0g]zzz\d/g

/** A request whose IDs are of the populated project; callers send it with others in their place. */
type Template = { operation: Operation; path: string; body: string | null }

/** A caller that sends IDs of the project of a mark, if it is `narrow` only in paths. A `blind` caller may read nothing. */
type Caller = { name: string; client: Client; mark: string; narrow?: boolean; blind?: boolean }

/** Headers that differ between any two replies. */
const VARYING = new Set(['date', 'x-request-id', 'connection', 'keep-alive', 'content-length', 'etag'])

const idIn = (id: string, mark: string) => copiedId(id, mark, BEFORE)

/** IDs in a text that differ between projects. */
const idsIn = (text: string) => [...new Set(text.match(ID) ?? [])].filter(id => idIn(id, HOME) !== id)

/** Sets of IDs of a template that are replaced together: those in the path, and each one. */
function setsOf({ path, body }: Template, isNarrow = false): string[][] {
  const single = idsIn(isNarrow ? path : `${path} ${body ?? ''}`).map(id => [id])
  const sets = [idsIn(path), ...single]
  return sets.filter((set, index) => set.length > 0 && sets.findIndex(each => each.join() === set.join()) === index)
}

describe('the isolation of projects in several cells', function () {
  this.timeout(400_000)
  const cells = forSuite(() => startCells())
  let params: Record<string, string>
  let templates: Template[]
  const callers: Caller[] = []
  let untouched: readonly Json[]
  /** Whether a cell is unavailable for longer than a busy machine makes it. */
  let isDown = false

  const setState = (state: string) => cells.services.pool.query(rawQuery(`update cells set state = $1`, [state]))

  before(async () => {
    const { services, admin } = cells
    // Makes the rows at home.
    await setState('closed')
    params = await populate({
      ...cells,
      pool: services.pool,
      servicesOf: () => services,
      inCellOf: (_id: string, work: (of: typeof services) => unknown) => work(services),
      anonymous: cells.as(null),
    } as unknown as TestApp)
    await setState('open')
    await copyProjects(cells.home, MARKS, BEFORE)
    await moveCopies(cells.home, CELL_SCHEMA, [SECOND, SECOND_FOREIGN], BEFORE)
    templates = await makeTemplates()
    for (const mark of [HOME, SECOND]) {
      const id = idIn(params.project_id, mark)
      const statement = [{ effect: 'Allow', action: ['*'], resource: [`srn:${id}:*:*`] }]
      const policy = await createdBy(admin, '/policies', { document: { statement } })
      const key = await createdBy(admin, '/project-keys', { project_id: id, policy_ids: [policy.id] })
      const client = cells.as(key.secret)
      callers.push({ name: `key of ${mark}`, client, mark })
      if (mark === SECOND) continue
      callers.push({ name: 'user', client: await user('one-project', [policy.id]), mark })
      const actor = { external_id: 'customer', name: 'Ann' }
      const token = { actor, agent_ids: [idIn(params.agent_id, mark)], scopes: END_USER_SCOPES }
      const limits = { requests_per_minute: 12_000 }
      const issued = await createdBy(client, '/actors/tokens', { ...token, limits })
      callers.push({ name: 'end user', client: cells.as(issued.token), mark, narrow: true })
    }
    callers.push({
      name: 'user without policies',
      client: await user('nobody', []),
      mark: SECOND,
      narrow: true,
      blind: true,
    })
    untouched = await foreignRows()
  })

  /** A user with policies, signed in. */
  async function user(username: string, policy_ids: string[]): Promise<Client> {
    const password = 'a fine password'
    const { id } = await createdBy(cells.admin, '/users', { username, password })
    assert.equal((await cells.admin.put(`/users/${id}/policies`, { policy_ids })).status, 204)
    return cells.as((await postedBy(cells.as(null), '/users/login', { username, password })).token)
  }

  /** Requests of every operation: one for each parameter that is an ID, and a body. */
  async function makeTemplates(): Promise<Template[]> {
    const document = withoutSharing((await cells.as(null).get('//openapi.json')).body)
    const described = new Map(describedOperations(document).map(each => [each.id, each]))
    const own: Ids['own'] = {}
    for (const { param, kind } of operations.all()) if (param && kind) own[kind.prefix] = [params[param]]
    const messages: Ids['messages'] = [[params.conversation_id, params.message_document_id]]
    const ids: Ids = { own, foreign: { proj: [params.grantee_id] }, messages }
    const idOf = (name: string): string | undefined =>
      params[name] ?? own[kinds.all().find(({ name: kind }) => name.endsWith(`${kind}_id`))?.prefix ?? '']?.[0]
    return operations.all().flatMap(operation => {
      const found = described.get(operation.id)
      if (!found) return []
      const path = operation.path.replace(/\{(\w+)\}/g, (_, name: string) => params[name])
      const names = ((found.operation.parameters ?? []) as Json[]).flatMap(each =>
        each.in === 'query' ? each.name : [],
      )
      const queries = names.flatMap(name => (idOf(name) ? [`${name}=${idOf(name)}`] : []))
      const requestOf = (query: string, body: string | null = null): Template => {
        const sent = [operation.waiting ? 'wait=false' : '', query].filter(Boolean).join('&')
        return { operation, path: sent ? `${path}?${sent}` : path, body }
      }
      if (!operation.body || !operation.consumes.includes('application/json'))
        return ['', ...queries].map(query => requestOf(query))
      const random = randomOf(1)
      // Numbers below this are IDs of the project.
      const low = { ...random, next: () => random.next() * 0.65 }
      return [requestOf('', JSON.stringify(createBody(found, low, ids, document)))]
    })
  }

  /**
   * Numbers and hashes of the rows of the projects that no caller may reach, by table. Without audit entries and their events and
   * counts: a refused change by a caller without any permission for the action is in the log of the project.
   */
  async function foreignRows(): Promise<readonly Json[]> {
    const found: Json[] = []
    for (const url of [cells.home, cells.second]) {
      const tables = await cells.rows(
        url,
        `select relname as name from pg_class where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p')
          and not relispartition and relname !~ '^(audit_|row_count)' order by 1`,
      )
      const parts = tables.map(
        ({
          name,
        }) => `select '${name}' as name, count(*)::int as count, md5(string_agg(t::text, ' ' order by t::text)) as hash
          from "${name}" t where t::text !~ 'audit_entries.created'
            and coalesce(to_jsonb(t) ->> 'project_id' ~ 'zzz1', t::text ~ 'zzz1' and t::text !~ 'zzz0')`,
      )
      found.push(...(await cells.rows(url, `${parts.join(' union all ')} order by 1`)))
    }
    return found
  }

  /** Sends a template with other IDs: some of a target, the rest of the caller's project. */
  async function send(template: Template, caller: Caller, set: readonly string[], target: string): Promise<string> {
    const { operation, path, body } = template
    const { client, mark, blind } = caller
    const sent = new Set<string>()
    const fill = (text: string) =>
      text.replace(ID, id => {
        const filled = idIn(id, set.includes(id) ? target : mark)
        sent.add(filled)
        return filled
      })
    const address = `${cells.url}/api/v1${fill(path)}`
    const request = () => exchange(address, operation.method, client.token as string, body && fill(body))
    let reply = await request()
    // On a busy machine a cell may be late.
    for (let tries = 1; !isDown && tries < 20 && isUnavailable(reply); tries++) {
      await sleep(250)
      reply = await request()
    }
    const whole = [...sent].reduce((rest, id) => rest.replaceAll(id, '<id>'), reply)
    const foreign = (whole.match(MARK) ?? []).filter(each => blind || each !== mark)
    assert.deepEqual(foreign, [], `${caller.name} ${operation.id} ${path}: ${whole}`)
    return whole
  }

  /** A reply without what differs between any two replies. */
  const comparable = (reply: string) =>
    reply
      .replace(/req_[0-9a-z]{26}/g, '<request>')
      .replace(ID, '<id>')
      .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, '<time>')

  /** Compares the replies to a template within groups of targets; returns what differs. */
  async function compare(
    template: Template,
    caller: Caller,
    groups: readonly (readonly string[])[],
    seen = new Set<string>(),
  ): Promise<string[]> {
    const problems: string[] = []
    const { operation, path, body } = template
    for (const set of setsOf(template, caller.narrow))
      for (const targets of groups) {
        const replies: string[] = []
        for (const target of targets) replies.push(comparable(await send(template, caller, set, target)))
        seen.add(replies[0].slice(0, 3))
        if (new Set(replies).size === 1) continue
        const shown = replies.map((reply, index) => `${targets[index]} ${reply.replaceAll('\n', ' | ').slice(0, 1000)}`)
        problems.push([`${caller.name}: ${operation.id} ${path} ${body ?? ''} ${set}`, ...shown].join('\n    '))
      }
    return problems
  }

  /** Runs work for each of some values, a few at a time. */
  async function forEach<T>(values: readonly T[], work: (value: T) => Promise<unknown>): Promise<void> {
    const rest = values.values()
    await Promise.all(
      Array.from({ length: 4 }, async () => {
        for (const value of rest) await work(value)
      }),
    )
  }

  it('shows each caller the records of its project only', async () => {
    for (const caller of callers) {
      let shown = 0
      await forEach(
        templates.filter(({ operation: { method, stream } }) => method === 'get' && !stream),
        async template => {
          const reply = await send(template, caller, [], caller.mark)
          if (reply.startsWith('200') && (caller.narrow || reply.includes(caller.mark))) shown++
        },
      )
      assert.ok(shown >= (caller.narrow ? 3 : 50), `${caller.name}: ${shown} replies with records`)
    }
  })

  it('has lists without a project whose totals are of the projects of the caller', async () => {
    const { client } = callers[1]
    let compared = 0
    for (const { operation } of templates.filter(({ operation, path }) => operation.paged && !path.includes('?'))) {
      if (!operation.across || operation.path.includes('{')) continue
      const [all, own] = [
        await client.get(operation.path),
        await client.get(`${operation.path}?project_id=${idIn(params.project_id, HOME)}`),
      ]
      if (own.status !== 200) continue
      assert.deepEqual([all.status, all.body.total], [200, own.body.total], operation.id)
      compared++
    }
    assert.ok(compared > 20, `${compared} lists`)
  })

  it('answers for records of other projects, of both cells, as for unknown IDs', async () => {
    const problems: string[] = []
    const seen = new Map(callers.map(({ name }) => [name, new Set<string>()]))
    const removes = ({ operation }: Template) => operation.method === 'delete'
    const writes = templates.filter(({ operation }) => !operation.reads)
    const ordered = [...writes.filter(each => !removes(each)), ...writes.filter(removes)]
    const reads = templates.filter(({ operation }) => operation.reads)
    await Promise.all(
      [HOME, SECOND].map(async mark => {
        for (const caller of callers.filter(each => each.mark === mark)) {
          const check = async (each: Template) =>
            problems.push(...(await compare(each, caller, groupsOf(each.operation, mark), seen.get(caller.name))))
          await forEach(reads, check)
          for (const each of ordered) await check(each)
        }
      }),
    )
    assert.deepEqual(problems, [])
    for (const { name, narrow } of callers) assert.ok(seen.get(name)?.has(narrow ? '403' : '404'), name)
    // Nothing of other projects has changed.
    assert.ok(untouched.filter(({ count }) => count > 0).length > 80)
    assert.deepEqual(await foreignRows(), untouched)
  })

  it('shows of a cell that is down only its number, which the IDs contain', async () => {
    const items = templates.filter(({ operation: { method, reads } }) => method === 'get' && reads)
    await setState('down')
    isDown = true
    await eventually(async () => (await cells.admin.get('/agents')).status === 503)
    const problems: string[] = []
    const seen = new Set<string>()
    const [bound, user] = callers
    await forEach(items, async each => {
      const groups = [
        [SECOND_FOREIGN, SECOND_UNKNOWN],
        [HOME_FOREIGN, HOME_UNKNOWN],
      ]
      problems.push(...(await compare(each, user, groups, seen)))
      problems.push(...(await compare(each, bound, groupsOf(each.operation, bound.mark))))
    })
    assert.deepEqual(problems, [])
    assert.ok(seen.has('404') && seen.has('503'))
  })
})

const isUnavailable = (reply: string) => reply.startsWith('503') && reply.includes('CELL_UNAVAILABLE')

const agent = new Agent({ keepAlive: true })

/** Sends a request; returns status, headers and body of the reply, of an event stream its first part. */
const exchange = (address: string, method: string, token: string, body: string | null): Promise<string> =>
  new Promise((resolve, reject) => {
    const content =
      body === null ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }
    const options = { method: method.toUpperCase(), headers: { authorization: `Bearer ${token}`, ...content }, agent }
    const sent = request(address, options)
    sent.on('response', response => {
      const parts: Buffer[] = []
      const headers = Object.entries(response.headers).filter(([name]) => !VARYING.has(name))
      const finish = () =>
        resolve([response.statusCode, ...headers.map(each => each.join(': ')), Buffer.concat(parts)].join('\n'))
      response.on('data', part => parts.push(part))
      response.on('end', finish)
      if (response.headers['content-type']?.startsWith('text/event-stream')) {
        response.on('error', () => {})
        finish()
        sent.destroy()
      } else response.on('error', reject)
    })
    sent.on('error', reject)
    sent.end(body ?? undefined)
  })
