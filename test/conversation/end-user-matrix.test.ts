import assert from 'node:assert/strict'
import { z } from 'zod'
import { type Operation, operations } from '#core/api/operation.ts'
import { fieldsOf } from '#core/api/parameters.ts'
import { newId } from '#core/base/ids.ts'
import { END_USER_SCOPES } from '#core/iam/caller.ts'
import type { Client, Reply } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { chat, type EndUserClient, endUser } from './end-user-support.ts'
import { expectRefusal, expectStatus, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

/** The operations that end users may call, by scope. */
const OPEN: Record<string, string[]> = {
  approvals: ['approveApproval', 'getApproval', 'listApprovals', 'rejectApproval'],
  chat: [
    'cancelSession',
    'createGenerationStreamTicket',
    'createSession',
    'createSessionStreamTicket',
    'deleteSession',
    'generateSessionReply',
    'getAgent',
    'getGeneration',
    'getSession',
    'listSessionMessages',
    'listSessions',
    'markSessionRead',
    'sendSessionMessage',
    'signalSessionTyping',
    'streamGeneration',
    'streamSession',
    'submitSessionToolOutputs',
    'updateSession',
  ],
  feedback: ['listFeedback', 'putMessageFeedback'],
  files: ['downloadFile', 'getFile', 'uploadFile'],
  memories: ['deleteMemory', 'listMemories'],
}

const isOpen = ({ endUser }: Operation): boolean => endUser !== null

/** Returns the path of an operation, with the values of its parameters, by default random ids of their kinds. */
const pathOf = ({ path }: Operation, values: Json = {}): string =>
  path.replace(/\{(\w+)\}/g, (_match, name: string) => values[name] ?? newId(prefixOf(name)))

const PREFIXES: Json = {
  session_id: 'sess',
  generation_id: 'gen',
  agent_id: 'agent',
  document_id: 'doc',
  memory_id: 'mem',
}
const prefixOf = (name: string): string => PREFIXES[name] ?? name.replace(/_id$/, '')

const send = (client: Client, { method }: Operation, path: string, body?: object): Promise<Reply> =>
  method === 'get' || method === 'delete' ? client[method](path) : client[method](path, body)

describe('operations for end users', () => {
  const app = forSuite(startSessionApp)
  let user: EndUserClient
  before(async () => {
    user = await endUser(app, { scopes: END_USER_SCOPES, limits: { requests_per_minute: 12_000 } })
  })

  it('are exactly the listed ones', () => {
    const open: Json = {}
    for (const { id, endUser } of operations.all()) if (endUser) (open[endUser.scope] ??= []).push(id)
    for (const ids of Object.values(open)) ids.sort()
    assert.deepEqual(open, OPEN)
  })

  it('declare how items and lists are narrowed, and a view that decides on every field of their records', () => {
    for (const operation of operations.all().filter(isOpen)) {
      const { id, shape, paged, endUser, answers } = operation
      if (shape === 'item') assert.ok(endUser?.owns, `${id} says whose its items are`)
      if (shape === 'list') assert.ok(endUser?.rows, `${id} says whose its rows are`)
      for (const schema of Object.values(answers).filter(each => each !== null)) {
        const view = endUser?.view
        assert.ok(view, `${id} has a view`)
        for (const name of recordFields(schema, paged))
          assert.notEqual(
            Object.hasOwn(view.shown, name),
            view.hidden.includes(name),
            `the view of ${id} shows or hides the field ${name}`,
          )
      }
      for (const event of operation.stream?.events ?? []) {
        const { event: name, data } = event.shape
        const view = endUser?.events?.[String((name as z.ZodLiteral<string>).value)]
        if (!view) continue
        for (const field of recordFields(data as z.ZodType, false))
          assert.ok(
            Object.hasOwn(view.shown, field) || view.hidden.includes(field) || AGENT_RESULT.has(field),
            `the view of ${String((name as z.ZodLiteral<string>).value)} of ${id} shows or hides the field ${field}`,
          )
      }
    }
  })

  it('all others answer 403, without a statement', async () => {
    const others = operations.all().filter(each => !isOpen(each) && each.gate !== 'public')
    assert.ok(others.length > 300)
    await user.get('/sessions')
    app.statements.length = 0
    for (const operation of others) {
      const body = operation.receive ? undefined : operation.body ? {} : undefined
      const { status, body: answer } = await send(user, operation, pathOf(operation), body)
      assert.deepEqual([operation.id, status, answer?.error?.code], [operation.id, 403, 'FORBIDDEN'])
    }
    const own = app.statements.filter(
      text => !/heartbeat|pg_notify|pgboss|issuer_id, position|set last_used_at|from (project_)?cells/.test(text),
    )
    assert.deepEqual(own, [])
  })

  it('public operations ignore the token', async () => {
    const login = await user.post('/users/login', { username: 'nobody', password: 'nothing' })
    assert.equal(login.status, 401)
  })

  it('a scope opens only its operations', async () => {
    const feedback = await endUser(app, { scopes: ['feedback'] })
    const error = expectRefusal(await feedback.get('/sessions'), 403, 'FORBIDDEN')
    assert.equal(error.meta.scope, 'chat')
  })

  it('find nothing of other end users and projects, in paths and in bodies', async () => {
    const stranger = await endUser(app)
    const session = await chat(stranger, app.agentId)
    const turn = expectStatus(await stranger.post(`/sessions/${session.id}/generate?wait=true`), 200)
    const other = await app.project()
    const provider = { project_id: other.id, name: 'double', provider: 'custom', default_model: 'double-1' }
    const { id: ai_provider_id } = expectStatus(
      await app.admin.post('/ai-providers', { ...provider, base_url: `${app.double.url}/v1` }),
      201,
    )
    const agent = expectStatus(await app.admin.post('/agents', { project_id: other.id, ai_provider_id }), 201)
    const foreign = expectStatus(await other.key.post('/sessions', { agent_id: agent.id }), 201)
    const own = await chat(user, app.agentId)
    const BODIES: Json = {
      sendSessionMessage: { message: 'x' },
      updateSession: { name: 'x' },
      putMessageFeedback: { rating: 1 },
      submitSessionToolOutputs: {
        generation_id: turn.generation_id,
        tool_outputs: [{ tool_call_id: 'x', output: null }],
      },
    }
    const sets = [
      { session_id: session.id, generation_id: turn.generation_id, agent_id: agent.id },
      { session_id: foreign.id, generation_id: newId('gen'), agent_id: newId('agent') },
      { session_id: 'nonsense', generation_id: 'nonsense', agent_id: 'nonsense' },
      {},
    ]
    for (const operation of operations.all().filter(each => isOpen(each) && each.path.includes('{')))
      for (const values of sets) {
        const reply = await send(user, operation, pathOf(operation, values), BODIES[operation.id])
        assert.equal(reply.status, 404, `${operation.id} ${JSON.stringify(values)} ${JSON.stringify(reply.body)}`)
      }
    const outputs = BODIES.submitSessionToolOutputs
    expectRefusal(await user.post(`/sessions/${own.id}/tool-outputs`, outputs), 404, 'GENERATION_NOT_FOUND')
    expectRefusal(await user.post('/sessions', { agent_id: agent.id }), 400, 'AGENT_NOT_FOUND')
    const listed = expectStatus(await user.get('/sessions?limit=100'), 200)
    assert.deepEqual([listed.total, listed.data.map(({ id }: Json) => id)], [1, [own.id]])
    assert.equal((await app.messages(session)).length, 2)
  })

  it('a thousand random ids are not found', async () => {
    const paths = ['/sessions/{session_id}', '/sessions/{session_id}/messages', '/generations/{generation_id}']
    const statuses = new Set<number>()
    for (let round = 0; round < 20; round++)
      await Promise.all(
        Array.from({ length: 50 }, async (_each, index) => {
          const path = pathOf({ path: paths[index % paths.length] } as Operation)
          statuses.add((await user.get(path)).status)
        }),
      )
    assert.deepEqual([...statuses], [404])
  })
})

/** Fields of results of turns outside sessions, which no end user has. */
const AGENT_RESULT = new Set(['id', 'agent_version', 'ai_provider_id', 'output', 'usage'])

/** The fields of a record, of each alternative, or of the records of a page. */
function recordFields(schema: z.ZodType, paged: boolean): string[] {
  if (schema instanceof z.ZodUnion) return schema.options.flatMap(each => recordFields(each as z.ZodType, paged))
  const fields = fieldsOf(schema)
  return paged ? Object.keys(fieldsOf((fields.data as z.ZodArray).element as z.ZodType)) : Object.keys(fields)
}
