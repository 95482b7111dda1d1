import assert from 'node:assert/strict'
import { rawQuery } from '#core/db/sql.ts'
import { endUser } from '../conversation/end-user-support.ts'
import { startSessionApp } from '../conversation/session-support.ts'
import { json, startTarget } from '../execution/tool-target.ts'
import { forSuite } from '../support/suite.ts'
import { calls, ofType, postRun, said, ThreadClient, types } from './ag-ui-support.ts'

const outcomeOf = (events: readonly any[]): any => events[events.length - 1].outcome

describe('interrupts of AG-UI clients', function () {
  this.timeout(60_000)
  const target = forSuite(startTarget)
  const app = forSuite(() =>
    startSessionApp({
      // A run that waits for an approval must not depend on its pings.
      env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', STREAM_PING_INTERVAL_MS: '600000' },
      actions: ['actors:*', 'agents:*', 'approvals:*', 'generations:*', 'guardrails:*', 'sessions:*'],
    }),
  )
  beforeEach(() => {
    target.requests.length = 0
    target.answer = json({ refunded: true })
  })

  /** A client of an end user whose agent needs an approval for refunds. */
  const open = async (
    document: object = { approver: 'end_user', end_user_arguments: ['amount'] },
    scopes?: string[],
  ) => {
    const rule = await app.key.post('/guardrails', { name: 'rule', document: { class: 'C', ...document } })
    assert.equal(rule.status, 201, JSON.stringify(rule.body))
    const agentId = await app.agent({
      guardrail_ids: [rule.body.id],
      tool_bindings: [{ tool: { name: 'refund', execute: { method: 'POST', url: `${target.url}/refund` } } }],
    })
    const user = await endUser(app, { agent_ids: [agentId], scopes: scopes ?? ['chat', 'approvals'] })
    return { user, agentId, client: new ThreadClient({ url: app.url, token: user.token, agentId }) }
  }
  const refund = (amount = 5) => calls('refund', { amount, account: 'secret-1' })
  const resolved = (interruptId: string, approved: boolean) => ({
    interruptId,
    status: 'resolved' as const,
    payload: { approved },
  })

  it('show the end user the listed arguments only, and continue after its approval', async () => {
    const { client } = await open()
    const asked = await client.say(said(refund(), { text: 'It waits.' }))
    assert.deepEqual(types(asked).slice(-6), [
      'TOOL_CALL_START',
      'TOOL_CALL_ARGS',
      'TOOL_CALL_END',
      'STATE_SNAPSHOT',
      'MESSAGES_SNAPSHOT',
      'RUN_FINISHED',
    ])
    const outcome = outcomeOf(asked)
    const [{ id, reason, toolCallId, message, responseSchema, expiresAt }] = outcome.interrupts
    assert.deepEqual([outcome.type, reason, message], ['interrupt', 'tool_call', 'Confirmation required'])
    assert.deepEqual(responseSchema.required, ['approved'])
    assert.ok(new Date(expiresAt) > new Date())
    assert.equal(ofType(asked, 'TOOL_CALL_ARGS')[0].delta, '{"amount":5}')
    // The script of the double is the message of the end user.
    const shown = JSON.stringify(asked.filter(({ type }) => type !== 'MESSAGES_SNAPSHOT'))
    for (const hidden of ['refund', 'secret-1']) assert.equal(shown.includes(hidden), false, hidden)
    assert.equal(target.requests.length, 0)
    await assert.rejects(client.say('another message'), /pending interrupt/)
    client.agent.messages = client.agent.messages.slice(0, -1)

    const done = await client.run({ resume: [resolved(id, true)] })
    assert.deepEqual(
      ofType(done, 'TOOL_CALL_RESULT').map(({ content, toolCallId: of }) => [content, of]),
      [['done', toolCallId]],
    )
    assert.equal(done.at(-1)?.outcome.type, 'success')
    assert.equal(target.requests.length, 1)
    assert.equal(client.texts().length, 2)
    assert.equal((await client.say(said({ text: 'thanks' }))).at(-1)?.type, 'RUN_FINISHED')
  })

  it('report a declined call, which is not made', async () => {
    for (const entry of ['declined', 'cancelled']) {
      const { client, agentId } = await open()
      const { interrupts } = outcomeOf(await client.say(said(refund(), { text: 'It waits.' })))
      const [{ id }] = interrupts
      const resume = entry === 'declined' ? resolved(id, false) : { interruptId: id, status: 'cancelled' as const }
      const done = await client.run({ resume: [resume] })
      assert.equal(ofType(done, 'TOOL_CALL_RESULT')[0].content, 'declined')
      assert.equal(client.texts().length, 2)
      assert.equal(target.requests.length, 0)
      const { data } = (await app.key.get(`/approvals?agent_id=${agentId}`)).body
      assert.deepEqual([data[0].status, data[0].resolution_reason], ['rejected', 'declined by the end user'])
    }
  })

  it('report a call that failed after the approval', async () => {
    const { client } = await open()
    target.answer = json({}, 500)
    const { interrupts } = outcomeOf(await client.say(said(refund(), { text: 'It waits.' })))
    const done = await client.run({ resume: [resolved(interrupts[0].id, true)] })
    assert.equal(ofType(done, 'TOOL_CALL_RESULT')[0].content, 'failed')
  })

  /** A client with two interrupts. */
  const openTwo = async () => {
    const { client, user, agentId } = await open()
    const both = { tool_calls: [refund(1), refund(2)].flatMap((each: any) => each.tool_calls) }
    const { interrupts } = outcomeOf(await client.say(said(both, { text: 'Both wait.' })))
    const ids: string[] = interrupts.map(({ id }: any) => id)
    const post = (resume: object[]) =>
      postRun(app, user, agentId, {
        threadId: client.agent.threadId,
        runId: crypto.randomUUID(),
        messages: client.agent.messages.filter(({ role }) => role !== 'activity'),
        resume,
      })
    const statuses = () => Promise.all(ids.map(async id => (await app.key.get(`/approvals/${id}`)).body.status))
    return { client, ids, post, statuses, agentId }
  }

  it('refuse incomplete, unknown, edited and contradicting answers, which resolve nothing', async () => {
    const { client, ids, post, statuses } = await openTwo()
    const [first, second] = ids
    const edited = { interruptId: second, status: 'resolved', payload: { approved: true, editedArgs: { amount: 9 } } }
    const unknown = resolved('apr_none', true)
    for (const resume of [
      [resolved(first, true)],
      [resolved(first, true), edited],
      [first, second].map(id => resolved(id, true)).concat(unknown),
    ]) {
      const { events } = await post(resume)
      assert.deepEqual([types(events), events.at(-1)?.code], [['RUN_STARTED', 'RUN_ERROR'], 'VALIDATION_FAILED'])
    }
    assert.deepEqual(await statuses(), ['pending', 'pending'])

    const answers = [resolved(first, true), resolved(second, false)]
    const done = await client.run({ resume: answers })
    assert.deepEqual(
      ofType(done, 'TOOL_CALL_RESULT').map(({ content }) => content),
      ['done', 'declined'],
    )
    assert.equal(ofType(done, 'TEXT_MESSAGE_START').length, 2)
    assert.equal(target.requests.length, 1)

    const repeated = await post(answers)
    assert.deepEqual(
      ofType(repeated.events, 'TOOL_CALL_RESULT').map(({ content }) => content),
      ['done', 'declined'],
    )
    assert.equal(target.requests.length, 1)
    const { events } = await post([resolved(first, false), resolved(second, false)])
    assert.equal(events.at(-1)?.code, 'APPROVAL_ALREADY_RESOLVED')
  })

  it('are resolved all or none next to a concurrent decision of one of them', async () => {
    for (let round = 0; round < 4; round++) {
      const { ids, post, statuses } = await openTwo()
      const [first, second] = ids
      const reject = () => app.key.post(`/approvals/${second}/reject`, { reason: 'no' })
      const resume = () => post([resolved(first, true), resolved(second, true)])
      const [{ events }, rejected] =
        round % 2 === 0
          ? await Promise.all([resume(), reject()])
          : await Promise.all([reject(), resume()]).then(([a, b]) => [b, a] as const)
      const isRejected = rejected.status === 200
      assert.deepEqual(await statuses(), isRejected ? ['pending', 'rejected'] : ['approved', 'approved'])
      assert.equal(events.at(-1)?.code, isRejected ? 'APPROVAL_ALREADY_RESOLVED' : undefined)
    }
  })

  it('have one answer when two runs answer differently at the same time', async () => {
    const { ids, post, statuses } = await openTwo()
    const answer = (approved: boolean) => post(ids.map(id => resolved(id, approved)))
    const runs = await Promise.all([answer(true), answer(false)])
    const codes = runs.map(({ events }) => events.at(-1)?.code)
    assert.equal(codes.filter(code => code === 'APPROVAL_ALREADY_RESOLVED').length, 1, String(codes))
    assert.equal(new Set(await statuses()).size, 1)
    assert.equal(target.requests.length, codes[0] === undefined ? 2 : 0)
  })

  it('are not resolved next to an expired one, which can be cancelled', async () => {
    const { ids, post, statuses } = await openTwo()
    const [first, second] = ids
    await app.pool.query(
      rawQuery("update approvals set expires_at = now() - interval '1 minute' where id = $1", [first]),
    )
    const { events } = await post([resolved(second, true), resolved(first, true)])
    assert.deepEqual([types(events), events.at(-1)?.code], [['RUN_STARTED', 'RUN_ERROR'], 'VALIDATION_FAILED'])
    assert.equal((await statuses())[1], 'pending')
    const cancelled = await post([resolved(second, true), { interruptId: first, status: 'cancelled' }])
    assert.equal(cancelled.events.at(-1)?.type, 'RUN_FINISHED')
    assert.equal((await statuses())[1], 'approved')
  })

  it('are not resolved by a caller without the permission', async () => {
    const { ids, statuses, agentId } = await openTwo()
    const [{ session_id }] = (await app.key.get(`/approvals?agent_id=${agentId}`)).body.data
    const statement = [{ effect: 'Allow', action: ['sessions:*'], resource: [`srn:${app.projectId}:*:*`] }]
    const policy = await app.admin.post('/policies', { document: { statement } })
    const key = await app.admin.post('/project-keys', { project_id: app.projectId, policy_ids: [policy.body.id] })
    const refused = await postRun(app, app.as(key.body.secret), agentId, {
      threadId: session_id,
      runId: crypto.randomUUID(),
      messages: [],
      resume: ids.map(id => resolved(id, true)),
    })
    assert.deepEqual([refused.status, refused.body?.error.code], [403, 'FORBIDDEN'])
    assert.deepEqual(await statuses(), ['pending', 'pending'])
  })

  it('are none for an approval of an operator, nor without the scope: the client may continue', async () => {
    const cases = [await open({}), await open(undefined, ['chat'])]
    for (const { client } of cases) {
      const events = await client.say(said(refund(), { text: 'It waits.' }))
      assert.deepEqual(
        ofType(events, 'CUSTOM').map(({ name }) => name),
        ['svc:approval_pending'],
      )
      assert.equal(events.at(-1)?.outcome.type, 'success')
      await client.say(said({ text: 'next' }))
      assert.deepEqual(client.texts(), ['It waits.', 'next'])
    }
  })

  it('of another end user are unknown', async () => {
    const { client, agentId } = await open()
    const { interrupts } = outcomeOf(await client.say(said(refund(), { text: 'It waits.' })))
    const other = await endUser(app, { agent_ids: [agentId], scopes: ['chat', 'approvals'] })
    const run = {
      threadId: crypto.randomUUID(),
      runId: crypto.randomUUID(),
      messages: [],
      resume: [resolved(interrupts[0].id, true)],
    }
    const { events } = await postRun(app, other, agentId, run)
    assert.equal(events.at(-1)?.code, 'VALIDATION_FAILED')
    assert.equal(target.requests.length, 0)
  })

  it('leave messages to an operator who has the session', async () => {
    const { client, user } = await open()
    await client.say(said({ text: 'hello' }))
    const [{ id }] = (await user.get('/sessions')).body.data
    assert.equal((await app.admin.post(`/sessions/${id}/takeover`, {})).status, 200)
    const runId = crypto.randomUUID()
    const events = await client.say('is anybody there?', { runId })
    assert.deepEqual(types(events), ['RUN_STARTED', 'CUSTOM', 'RUN_FINISHED'])
    assert.deepEqual([events[1].name, events[1].value.control], ['svc:operator', 'operator'])
    assert.deepEqual(types(await client.run({ runId })), ['RUN_STARTED', 'CUSTOM', 'RUN_FINISHED'])
    const sent = await app.admin.post(`/sessions/${id}/operator-messages`, {
      message: 'Yes, I am.',
      idempotency_key: 'a',
    })
    assert.equal(sent.status, 201, JSON.stringify(sent.body))
    await client.say('good')
    assert.deepEqual(client.texts(), ['hello', 'Yes, I am.'])
    assert.deepEqual(
      client.agent.messages.slice(-3).map(({ content }) => content),
      ['is anybody there?', 'Yes, I am.', 'good'],
    )
    assert.equal((await app.key.get(`/generations?session_id=${id}`)).body.total, 1)
  })
})
