import assert from 'node:assert/strict'
import { kinds } from '#core/api/kind.ts'
import { operations } from '#core/api/operation.ts'
import { idStatement } from '#core/db/sql.ts'
import { eventDispatchQueue } from '#core/writes/writer.ts'
import { startContinuation } from '#execution/chains/continuation.ts'
import { generationKind } from '#execution/generations/model.ts'
import { admitTurn } from '#execution/generations/request/admission.ts'
import { createTurn } from '#execution/generations/request/create.ts'
import { insertClient, insertGrant } from '#identity/grants/store.ts'
import { eventually, type TestApp } from './app.ts'
import { propose } from './approvals.ts'
import { canary } from './canaries.ts'
import { createBody, type Described, describedOperations, type Ids, randomOf, withoutSharing } from './fuzz.ts'
import { postedBy } from './replies.ts'

type Json = Record<string, any>

const JSON_TYPE = 'application/json'

const ROUNDS = 5

/** The record of a quota of requests changes with every request. */
const ONE_WITH_SECRET = { type: 'webhook', cron: undefined, timezone: undefined, event_pattern: undefined }
const FIXED: Record<string, Json> = {
  createQuota: { metric: 'tokens' },
  createTrigger: ONE_WITH_SECRET,
  createSavedView: { view: 'traces' },
}

/**
 * Makes one of every kind there is in a project, by the creates and lists that the operations declare; returns the value
 * of every path parameter. A kind that this cannot make fails here: its create needs an example (support/fuzz.ts), or what
 * makes it needs a line below.
 */
export async function populate(app: TestApp): Promise<Record<string, string>> {
  const document = withoutSharing((await app.anonymous.get('//openapi.json')).body)
  const described = new Map(describedOperations(document).map(each => [each.id, each]))
  const random = randomOf(1)
  const ids: Ids = { own: {}, foreign: {}, messages: [] }
  const send = (path: string, body?: object) => postedBy(app.admin, path, body)
  const creates = operations
    .all()
    .filter(({ shape, path, answers }) => shape === 'create' && 201 in answers && !path.includes('{'))
    .filter(({ consumes }) => consumes.includes(JSON_TYPE))
  // A shared resource is shared with another project, of the same cell.
  const guest = (await send('/projects', { name: 'guest' })).id
  ids.foreign.proj = [guest]
  const cell = app.servicesOf(guest).cell?.name
  // What a create refers to may come after it, and a body chosen at random may be refused for what a schema cannot say.
  let refused: unknown
  for (let round = 0; round < ROUNDS; round++)
    for (const { id, path, kind, waiting } of creates) {
      if (!kind || ids.own[kind.prefix]) continue
      try {
        const made = createBody(described.get(id) as Described, random, ids, document)
        const body = kind.name === 'project' && cell ? { ...made, cell } : made
        ids.own[kind.prefix] = [(await send(waiting ? `${path}?wait=false` : path, { ...body, ...FIXED[id] })).id]
      } catch (error) {
        refused = error
      }
    }
  if (creates.some(({ kind }) => kind && !ids.own[kind.prefix])) throw refused
  const one = (prefix: string) => ids.own[prefix][0]
  // Nothing deploys it: it becomes as a deploy leaves it.
  await app.pool.query(idStatement`
    with settled as (delete from formation_attempts where formation_id = ${one('form')} returning id),
      operation as (update formation_operations set status = 'succeeded' where id in (select id from settled))
    update formations set status = 'active' where id = ${one('form')} returning id`)
  // Rows created by other operations than a create.
  ids.own.trg_fire = [(await send(`/triggers/${one('trg')}/fire?wait=false`)).id]
  ids.own.whd = [(await send(`/webhooks/${one('wh')}/test`)).id]
  ids.own.trg_fire = [(await send(`/triggers/${one('trg')}/fire`, { wait: false })).id]
  await send(`/agents/${one('agent')}/generate?wait=false`, { prompt: canary('prompt') })
  const [generation] = (await app.admin.get(`/generations?project_id=${one('proj')}`)).body.data
  ids.own.apr = [
    (await propose(app, generation.id, { id: one('tool'), name: 'tool' }, { amount: 1, to: canary('argument') })).id,
  ]
  ids.own.chain = [await chainOf(app, generation.id)]
  const acceptance = await send(`/shares/${one('shr')}/accept`, { project_id: guest })
  const message = await send(`/conversations/${one('conv')}/messages`, { role: 'user', message: canary('message') })
  const session = (await app.admin.get(`/sessions/${one('sess')}`)).body
  const reply = await send(`/conversations/${session.conversation_id}/messages`, {
    role: 'assistant',
    message: canary('message'),
  })
  const rated = await app.admin.put(`/sessions/${session.id}/messages/${reply.document_id}/feedback`, { rating: 1 })
  ids.own.fb = [rated.body.id]
  ids.own.snote = [(await send(`/sessions/${session.id}/notes`, { text: canary('note') })).id]

  const inCase = `/cases/${one('case')}`
  ids.own.case_evd = [(await send(`${inCase}/evidence`, { name: 'N', kind: 'note', content: canary('evidence') })).id]
  ids.own.case_link = [(await send(`${inCase}/links`, { type: 'file', target_id: one('file') })).id]
  ids.own.pbk_exp = [(await send('/playbook-exports', { subject_type: 'case', subject_id: one('case') })).id]
  ids.own.case_evt = [(await send(`${inCase}/comments`, { body: canary('comment') })).id]

  const project_id = one('proj')
  const price = { model: 'm', component: 'output_tokens', unit: 'token', unit_price: 1, effective_from: '2999-01-01' }
  const priced = await app.admin.put(`/projects/${project_id}/prices`, { prices: [{ ...price, provider: 'custom' }] })
  ids.own.price = [priced.body.prices[0].id]
  const rule = await send('/guardrails', { project_id, name: 'open', document: { class: 'A' } })
  const action = { action: 'list-tools', project_id }
  const calling = { type: 'platform', actions: ['list-tools'], preset_parameters: action, guardrail_ids: [rule.id] }
  await send(`/tools/${(await send('/tools', { project_id, name: 'guarded', ...calling })).id}/call`)
  // Verdicts of guardrails are written with the call.
  const said = `/guardrail-evaluations?guardrail_id=${rule.id}`
  ids.own.gev = [(await eventually(async () => (await app.admin.get(said)).body.data[0])).id]
  // So is its usage.
  const used = `/usage/events?project_id=${project_id}`
  ids.own.ue = [(await eventually(async () => (await app.admin.get(used)).body.data[0])).id]

  const input = [{ role: 'user', content: canary('content') }]
  ids.own.dsit = [(await send(`/datasets/${one('dset')}/items`, { input })).id]
  const measured = { project_id, agent_id: one('agent'), dataset_id: one('dset'), scorers: [{ type: 'exact_match' }] }
  ids.own.eval = [(await send('/evals', { ...measured, name: 'measured' })).id]
  ids.own.evrun = [(await send(`/evals/${one('eval')}/runs`, {})).id]
  // Shown once it is done, which takes a worker.
  ids.own.evres = [
    await app.pool.oneFirst(idStatement`select id from eval_results where eval_run_id = ${one('evrun')}`),
  ]

  // Made by the protocol.
  ids.own.oac = ['oac_00000000000000000000000000']
  ids.own.ogr = ['ogr_00000000000000000000000000']
  const times = { endsAt: new Date('2999-01-01'), expiresAt: new Date('2999-01-01') }
  await insertClient(app.services.pool, { id: one('oac'), name: 'client', metadata: {}, secretHash: null }, 2000)
  await insertGrant(app.pool, {
    id: one('ogr'),
    user_id: (await app.admin.get('/users/me')).body.id,
    project_id,
    client_id: one('oac'),
    client_name: 'client',
    scopes: ['mcp:access', '*'],
    openid_scopes: [],
    ...times,
  })

  for (const { id, shape, kind } of operations.all()) {
    if (shape !== 'list' || !kind || ids.own[kind.prefix]) continue
    const { path, operation } = described.get(id) as Described
    const scoped = operation.parameters.some(({ name }: Json) => name === 'project_id')
    const { body } = await app.admin.get(`${path.slice('/api/v1'.length)}${scoped ? `?project_id=${one('proj')}` : ''}`)
    if (body.data?.[0]) ids.own[kind.prefix] = [body.data[0].id]
  }
  const missing = kinds.all().filter(({ prefix }) => !ids.own[prefix])
  assert.deepEqual(
    missing.map(({ name }) => name),
    [],
  )
  return {
    ...Object.fromEntries(
      operations.all().flatMap(({ param, kind }) => (param && kind ? [[param, one(kind.prefix)]] : [])),
    ),
    version: '1',
    queue: eventDispatchQueue.name,
    message_id: '00000000-0000-4000-8000-000000000000',
    client_id: one('oac'),
    price_id: one('price'),
    acceptance_id: acceptance.id,
    grantee_id: guest,
    firing_id: one('trg_fire'),
    evidence_id: one('case_evd'),
    execution_id: one('pbk_exec'),
    step: '1',
    step_key: 'a',
    link_id: one('case_link'),
    message_document_id: message.document_id,
  }
}

/** The chain of a turn that another carries on. */
async function chainOf({ services }: TestApp, initiatorId: string): Promise<string> {
  const initiator = await generationKind.find(services.pool, initiatorId)
  if (!initiator) throw new Error('turn not found')
  const { project_id, agent_id, authority } = initiator
  const turn = { project_id, agent_id, authority, streamed: false, shape: 'agent' as const }
  await services.write(tx =>
    startContinuation(
      tx,
      services,
      { project_id, initiatorId },
      nested => admitTurn(nested, services, { project_id, agent_id }),
      (_agent, member) =>
        createTurn(tx, services, { ...turn, ...member, messages: [{ role: 'user', content: 'go on' }] }),
    ),
  )
  return (await generationKind.find(services.pool, initiatorId))?.chain_id as string
}
