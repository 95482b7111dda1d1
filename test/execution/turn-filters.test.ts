import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { createdBy, postedBy } from '../support/replies.ts'
import { scriptOf } from '../support/scripts.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

describe('filters of turns and traces', function () {
  this.timeout(60_000)
  const app = forSuite(() => startAgentApp())
  type Reader = { get(path: string): Promise<any> }
  const LISTS = ['generations:ListGenerations', 'traces:ListTraces']
  const READ = ['generations:GetGeneration', 'traces:GetTrace']
  const reader = (action: string[], resource = [`srn:${app.projectId}:*:*`]) =>
    app.user(undefined, [{ statement: [{ effect: 'Allow', action, resource }] }])
  const turn = async (prompt: string, agent = app.agentId) => {
    const { body } = await app.key.post(`/agents/${agent}/generate?wait=true`, { prompt })
    return (await app.key.get(`/generations/${body.id ?? body.error.meta.generation_id}`)).body
  }
  const request = (client: Reader, list: string, query: object) =>
    client.get(`/${list}?${new URLSearchParams({ project_id: app.projectId, ...query })}`)
  const ids = async (client: Reader, list: string, query: object): Promise<string[]> => {
    const { status, body } = await request(client, list, query)
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.total, body.data.length)
    return body.data.map(({ id }: any) => id)
  }
  /** Both lists must find these turns, newest first. */
  const finds = async (query: object, turns: any[], client: Reader = app.key) => {
    const message = JSON.stringify(query)
    assert.deepEqual(
      await ids(client, 'generations', query),
      turns.map(({ id }) => id),
      message,
    )
    assert.deepEqual(
      await ids(client, 'traces', query),
      turns.map(({ trace_id }) => trace_id),
      message,
    )
  }
  const refusal = async (client: Reader, list: string, query: object) => {
    const { status, body } = await request(client, list, query)
    return [status, body.error?.meta?.field, body.error?.meta?.action]
  }
  let unpriced: any
  let costly: any
  let failed: any
  let green: any
  let ada: any
  let session: any
  const settled = () => [green, failed, costly, unpriced]

  before(async () => {
    unpriced = await turn('Where is 100%_sure?')
    await app.admin.put(`/projects/${app.projectId}/prices`, {
      prices: ['input_tokens', 'output_tokens'].map(component => ({
        provider: 'custom',
        model: 'double-1',
        component,
        unit: 'token',
        unit_price: 0.001,
        effective_from: '2026-01-01T00:00:00Z',
      })),
    })
    costly = await turn(`Compare the TARIFFS ${'of all '.repeat(200)}`)
    failed = await turn(scriptOf({ error: { status: 400, message: 'no such model' } }))
    ada = await createdBy(app.key, '/actors', { name: 'Ada' })
    session = await createdBy(app.key, '/sessions', { agent_id: app.agentId, actor_id: ada.id })
    await postedBy(app.key, `/sessions/${session.id}/messages`, { message: 'I lost my umbrella' })
    await app.key.post(`/sessions/${session.id}/messages`, { message: 'It is green' })
    const { generation_id } = await postedBy(app.key, `/sessions/${session.id}/generate?wait=true`, {})
    green = (await app.key.get(`/generations/${generation_id}`)).body
  })

  it('find turns by status and code of the error', async () => {
    await finds({ status: 'failed' }, [failed])
    await finds({ error_code: 'AI_PROVIDER_ERROR' }, [failed])
    await finds({ error_code: 'GENERATION_FAILED' }, [])
    await finds({ status: 'completed', error_code: 'AI_PROVIDER_ERROR' }, [])
  })

  it('find turns by end user, session, agent and time, combined with an outcome', async () => {
    await finds({ actor_id: ada.id }, [green])
    await finds({ session_id: session.id, status: 'completed' }, [green])
    await finds({ agent_id: app.agentId, status: 'completed' }, [green, costly, unpriced])
    await finds({ actor_id: ada.id, status: 'failed' }, [])
    await finds({ agent_id: app.agentId, status: 'completed', from: costly.created_at }, [green, costly])
    await finds({ agent_id: app.agentId, status: 'completed', to: costly.created_at }, [costly, unpriced])
  })

  it('find turns by the least cost that they show, which unpriced and failed turns have not', async () => {
    assert.equal(unpriced.usage.cost_usd, null)
    const cost: number = costly.usage.cost_usd
    assert.ok(cost > green.usage.cost_usd)
    await finds({ min_cost_usd: cost }, [costly])
    await finds({ min_cost_usd: cost + 0.001 }, [])
    await finds({ min_cost_usd: 0 }, [green, costly])
  })

  it('find turns by the least latency', async () => {
    const latency = ({ started_at, completed_at }: any) => Date.parse(completed_at) - Date.parse(started_at)
    for (const ms of settled().map(latency)) {
      await finds(
        { min_latency_ms: ms },
        settled().filter(each => latency(each) >= ms),
      )
      await finds(
        { min_latency_ms: ms + 1 },
        settled().filter(each => latency(each) > ms),
      )
    }
  })

  it('find turns by a text of the answer or of the messages that it answers, and not of earlier ones', async () => {
    await finds({ text: 'compare the tariffs' }, [costly])
    await finds({ text: 'no such model' }, [failed])
    await finds({ text: '100%_SURE' }, [unpriced])
    await finds({ text: '100__sure' }, [])
    await finds({ text: 'umbrella' }, [green])
    const agent_id = await app.agent()
    const talk = await createdBy(app.key, '/sessions', { agent_id })
    const turns: any[] = []
    for (const message of ['I lost a kettle', 'And a toaster']) {
      await postedBy(app.key, `/sessions/${talk.id}/messages`, { message })
      const { generation_id } = await postedBy(app.key, `/sessions/${talk.id}/generate?wait=true`, {})
      turns.push((await app.key.get(`/generations/${generation_id}`)).body)
    }
    await finds({ text: 'kettle' }, [turns[0]])
    await finds({ text: 'toaster' }, [turns[1]])
  })

  it('never find erased content, nor content that is not stored', async () => {
    const unstored = await turn('a pelican', await app.agent({ trace_content_mode: 'none' }))
    await finds({ text: 'pelican' }, [])
    await finds({ agent_id: unstored.agent_id, status: 'completed' }, [unstored])
    const erased = await turn(scriptOf({ error: { status: 400, message: 'heron' } }), await app.agent())
    await finds({ text: 'heron', error_code: 'AI_PROVIDER_ERROR' }, [erased])
    assert.equal((await app.key.delete(`/generations/${erased.id}/content`)).status, 200)
    await finds({ text: 'heron' }, [])
    await finds({ agent_id: erased.agent_id, error_code: 'AI_PROVIDER_ERROR' }, [])
  })

  it('refuse a text to callers who may not read content, and name the filter', async () => {
    for (const [actions, missing] of [
      [LISTS, 'generations:GetGeneration'],
      [[...LISTS, 'generations:GetGeneration'], 'traces:GetTrace'],
    ] as const)
      for (const list of ['generations', 'traces'])
        assert.deepEqual(await refusal(await reader([...actions]), list, { text: 'tariffs' }), [403, 'text', missing])
    await finds({ text: 'tariffs' }, [costly], await reader([...LISTS, ...READ]))
  })

  it('find a text only in the turns that the caller may read', async () => {
    const client = await app.user(undefined, [
      {
        statement: [
          { effect: 'Allow', action: [...LISTS, 'traces:GetTrace'], resource: [`srn:${app.projectId}:*:*`] },
          {
            effect: 'Allow',
            action: ['generations:GetGeneration'],
            resource: [`srn:${app.projectId}:generation:${failed.id}`],
          },
        ],
      },
    ])
    await finds({ text: 'tariffs' }, [], client)
    await finds({ text: 'no such model' }, [failed], client)
  })

  it('refuse filters of traces by turns to callers who may not list turns', async () => {
    const client = await reader(['traces:ListTraces', ...READ])
    const filters = {
      status: 'failed',
      error_code: 'X',
      min_cost_usd: 1,
      min_latency_ms: 1,
      actor_id: ada.id,
      session_id: 's',
      text: 't',
    }
    for (const [field, value] of Object.entries(filters))
      assert.deepEqual(
        await refusal(client, 'traces', { [field]: value }),
        [403, field, 'generations:ListGenerations'],
        field,
      )
    assert.equal((await ids(client, 'traces', {})).includes(costly.trace_id), true)
    const some = [`srn:${app.projectId}:trace:*`, `srn:${app.projectId}:generation:${failed.id}`]
    assert.deepEqual(await ids(await reader(LISTS, some), 'traces', { status: ['failed'] }), [failed.trace_id])
    assert.deepEqual(await ids(await reader(LISTS, some), 'traces', { status: 'completed' }), [])
  })

  it('find nothing of another project', async () => {
    const { key } = await app.project()
    for (const list of ['generations', 'traces'])
      for (const query of [`actor_id=${ada.id}`, 'error_code=AI_PROVIDER_ERROR', 'text=tariffs', 'min_cost_usd=0'])
        assert.deepEqual(await bodyOf(key, `/${list}?${query}`), [], query)
  })

  it('refuse values that are no amounts', async () => {
    for (const query of [{ min_cost_usd: '-1' }, { min_cost_usd: '1e3' }, { min_latency_ms: '0.5' }, { text: '' }])
      for (const list of ['generations', 'traces']) assert.equal((await request(app.key, list, query)).status, 400)
  })

  it('compare a text with a limited number of turns, and say how to select fewer', async () => {
    const project = await app.project('large')
    const provider = { name: 'double', provider: 'custom', default_model: 'double-1', base_url: `${app.double.url}/v1` }
    const { id: ai_provider_id } = await createdBy(project.key, '/ai-providers', provider)
    const { id: agent } = await createdBy(project.key, '/agents', { ai_provider_id })
    await app.pool.query(sql.unsafe`
      insert into traces (id, project_id, agent_id) values ('trace_00000000000000000000000000', ${project.id}, ${agent})`)
    await app.pool.query(sql.unsafe`
      insert into generations (id, project_id, agent_id, trace_id, status, authority, output, created_at, updated_at)
      select 'gen_' || lpad(n::text, 26, '0'), ${project.id}, ${agent}, 'trace_00000000000000000000000000', 'completed', '{}',
        jsonb_build_object('content', 'heron ' || n), now() - n * interval '1 second', now()
      from generate_series(1, 50001) n`)
    for (const list of ['generations', 'traces']) {
      const { status, body } = await project.key.get(`/${list}?text=heron`)
      assert.deepEqual([status, body.error.code, body.error.meta.problems[0].path], [400, 'VALIDATION_FAILED', 'text'])
    }
    const from = new Date(Date.now() - 3_600_000).toISOString()
    const { body } = await project.key.get(`/generations?text=HERON%2050&from=${from}`)
    assert.deepEqual(
      body.data.map(({ id }: any) => Number(id.slice(4))),
      [50, ...Array.from({ length: 10 }, (_, n) => 500 + n)],
    )
  })

  const bodyOf = async (client: Reader, path: string) => {
    const { status, body } = await client.get(path)
    assert.equal(status, 200, JSON.stringify(body))
    return body.data
  }
})
