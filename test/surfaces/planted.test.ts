import assert from 'node:assert/strict'
import { z } from 'zod'
import { actorKind } from '#conversation/actors/model.ts'
import { workerCommands } from '#core/api/commands.ts'
import { itemOperation } from '#core/api/operation.ts'
import { tools, wire } from '../mcp/support.ts'
import { startApp, type TestApp } from '../support/app.ts'
import { loadBeside } from '../support/modules.ts'

const Greeting = z.object({ text: z.string(), actor_id: z.string() }).meta({ id: 'Greeting' })

const greetActor = itemOperation(actorKind, {
  id: 'greetActor',
  method: 'post',
  path: '/actors/{actor_id}/greet',
  summary: 'Greet an end user',
  description: 'Answers the words with the name of the end user.',
  tag: 'Actors',
  action: 'actors:GreetActor',
  body: z
    .strictObject({ title: z.string().max(20).describe('How the end user is addressed') })
    .meta({ id: 'GreetingInput' }),
  answers: { 200: Greeting },
  reads: true,
  transaction: false,
  run: async ({ resource, body }) => ({ text: `Hello ${body.title} ${resource.name}`, actor_id: resource.id }),
})

describe('one more operation, without any other change', () => {
  let app: TestApp
  let unload: () => void
  before(async () => {
    unload = loadBeside({ operations: [greetActor] })
    app = await startApp()
  })
  after(async () => {
    await app?.close()
    unload?.()
  })

  it('has its command, flat call, examples and described fields', async () => {
    assert.deepEqual(workerCommands.get('greetActor').words, ['actors', 'greet'])
    const { body } = await app.anonymous.get('//openapi.json')
    const operation = body.paths['/api/v1/actors/{actor_id}/greet'].post
    assert.deepEqual(operation['x-command'], ['actors', 'greet'])
    assert.deepEqual(operation['x-flat'], [
      { name: 'actor_id', in: 'path', required: true },
      { name: 'title', in: 'body', required: true },
    ])
    assert.deepEqual(operation.requestBody.content['application/json'].example, { title: 'Support desk' })
    const reference = (await app.anonymous.get('//docs/openapi.json')).body
    const answered = reference.paths['/api/v1/actors/{actor_id}/greet'].post.responses[200].content['application/json']
    assert.deepEqual(Object.keys(answered.example), ['text', 'actor_id'])
    assert.match(answered.example.actor_id, /^actor_/)
    const { text, actor_id } = body.components.schemas.Greeting.properties
    assert.deepEqual([text.description, actor_id.description], ['Text', 'ID of the actor'])
  })

  it('is a tool of /mcp, whose arguments are the flat call, for callers who may use it', async () => {
    const { key } = await app.projectWith(['actors:CreateActor', 'actors:GreetActor'])
    const actor = (await key.post('/actors', { name: 'Ann' })).body.id
    const { body } = await wire(app.url, key.token)('tools/list', {}, { query: '?tools=all&permitted=true' })
    const tool = body.result.tools.find(({ name }: { name: string }) => name === 'greet-actor')
    assert.deepEqual(Object.keys(tool.inputSchema.properties), ['actor_id', 'title'])
    const { structuredContent } = await tools(app.url, key.token)('greet-actor', { actor_id: actor, title: 'Dr' })
    assert.deepEqual(structuredContent, { text: 'Hello Dr Ann', actor_id: actor })
    const stranger = await app.projectWith(['actors:CreateActor'])
    assert.equal((await stranger.key.post(`/actors/${actor}/greet`, { title: 'Dr' })).status, 403)
  })
})
