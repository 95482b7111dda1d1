import assert from 'node:assert/strict'
import { forSuite } from '../support/suite.ts'
import librechat from './front-ends/librechat.json' with { type: 'json' }
import openWebUi from './front-ends/open-webui.json' with { type: 'json' }
import { dataLines, startOpenAiApp } from './openai-support.ts'

type Json = Record<string, any>

/**
 * Headers and fields of requests of Open WebUI 0.11 with ENABLE_FORWARD_USER_INFO_HEADERS, and of a custom endpoint of
 * LibreChat 0.8 with the headers in docs/openai.md, in the shape in which the programs build them. The texts are ours.
 */
const frontEnds = { 'Open WebUI': openWebUi, LibreChat: librechat }

const ACTIONS = ['agents:CreateAgentGeneration', 'sessions:*', 'actors:*', 'generations:*', 'chats:*']
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

const rules = [
  { when: { user: '### Task' }, reply: { text: '{"title":"Numbers","tags":["numbers"]}' } },
  { when: { user: 'one' }, reply: { text: 'first' } },
  { when: { user: 'two' }, reply: { text: 'second' } },
  { when: { user: 'three' }, replies: [{ text: 'third' }, { text: 'third again' }] },
  { reply: { text: 'changed' } },
]

const user = (content: unknown) => ({ role: 'user', content })
const assistant = (content: string) => ({ role: 'assistant', content })

describe('the OpenAI mount: front ends', () => {
  const app = forSuite(() => startOpenAiApp({ actions: ACTIONS, env: { PROVIDER_MAX_RETRIES: '0' } }))
  const agents: Record<string, string> = {}

  before(async () => {
    // Before the first list of models, which is cached.
    for (const name of Object.keys(frontEnds)) agents[name] = (await app.scripted(rules, { name })).agentId
  })

  for (const [name, { headers, chat_headers, chat, title, tags, reply_prefix }] of Object.entries(frontEnds))
    describe(name, () => {
      let model: string
      before(() => {
        model = agents[name]
      })

      const isStreamed = ({ stream }: { stream: boolean }): boolean => stream
      /** Sends a request of the front end; returns the text and the session of the answer. */
      async function send(fields: Json, messages: Json[], chatHeaders: Record<string, string> = chat_headers) {
        const response = await app.send(
          '/chat/completions',
          { model, messages, ...fields },
          { headers: { ...headers, ...chatHeaders } },
        )
        assert.equal(response.status, 200, await response.clone().text())
        const session = response.headers.get('x-svc-session-id') as string
        if (!isStreamed(fields as { stream: boolean }))
          return { session, text: ((await response.json()) as Json).choices[0].message.content as string }
        const lines = await dataLines(response)
        assert.equal(lines.pop(), '[DONE]')
        const chunks = lines.map(line => JSON.parse(line))
        assert.ok(chunks.at(-1).usage.total_tokens > 0)
        return { session, text: chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('') }
      }
      const contentsOf = async (id: string): Promise<string[]> =>
        (await app.messages({ id })).map((message: Json) => message.content)

      it('reads the list of models with its headers', async () => {
        const response = await fetch(`${app.base}/models`, {
          headers: { ...headers, authorization: `Bearer ${app.key.token as string}` },
        })
        const { data } = (await response.json()) as Json
        assert.equal(data.find(({ id }: Json) => id === model).name, name)
      })

      it('three turns, a regenerate, an edit and its tasks are one session, two forks and ephemeral turns', async () => {
        const history: Json[] = [{ role: 'system', content: 'Answer briefly.' }]
        const say = async (text: string) => {
          history.push(user(text))
          const { session, text: answer } = await send(chat, history)
          history.push(assistant(reply_prefix + answer))
          return session
        }
        const session = await say('one')
        assert.deepEqual([await say('two'), await say('three')], [session, session])
        const contents = ['one', 'first', 'two', 'second', 'three', 'third']
        assert.deepEqual(await contentsOf(session), contents)
        const regenerated = await send(chat, history.slice(0, 6))
        assert.equal(regenerated.text, 'third again')
        const edited = await send(chat, [...history.slice(0, 3), user('edited')])
        assert.equal(edited.text, 'changed')
        const forks = [regenerated.session, edited.session]
        const { data } = (await app.key.get(`/sessions?agent_id=${model}`)).body
        assert.deepEqual(data.map(({ id }: Json) => id).sort(), [session, ...forks].sort())
        assert.deepEqual(await contentsOf(edited.session), ['one', 'first', 'edited', 'changed'])
        for (const task of [title, tags].filter(each => each !== null)) {
          const done = await send(task, [user('### Task: describe the chat in JSON.\nuser: one\nassistant: first')])
          assert.match(done.text, /^\{"title"/)
          assert.deepEqual(await contentsOf(done.session), [])
          assert.equal((await app.key.get(`/sessions/${done.session}`)).body.ephemeral, true)
        }
        assert.deepEqual(await contentsOf(session), contents)
        const actors = (await app.key.get('/actors?limit=100')).body.data as Json[]
        const actor = actors.find(({ external_id }) => Object.values<string>(headers).includes(external_id))
        assert.equal((await app.key.get(`/sessions/${session}`)).body.actor_id, actor?.id)
      })

      it('its task model is a chat, which no session sees', async () => {
        const before = (await app.key.get(`/sessions?agent_id=${model}&ephemeral=true`)).body.total
        const task = await app.chat({ name: `${name} tasks` })
        const response = await app.send(
          '/chat/completions',
          { ...title, model: task.id, messages: [user('### Task: name the chat')] },
          { headers: { ...headers, ...chat_headers } },
        )
        assert.equal(response.status, 200, await response.clone().text())
        assert.equal(response.headers.get('x-svc-session-id'), null)
        assert.equal((await app.key.get(`/sessions?agent_id=${model}&ephemeral=true`)).body.total, before)
      })

      it('an image goes to the model of a chat unchanged', async () => {
        const lane = `image-${name.replace(' ', '-').toLowerCase()}`
        await app.lanes.put(lane, { rules: [{ reply: { text: 'a pixel' } }] })
        const { id } = await app.chat({ model: `${lane}/m` })
        const parts = [
          { type: 'text', text: 'Describe it' },
          { type: 'image_url', image_url: { url: `data:image/png;base64,${PIXEL}`, detail: 'auto' } },
        ]
        const response = await app.send(
          '/chat/completions',
          { ...chat, model: id, messages: [user(parts)] },
          { headers: { ...headers, ...chat_headers } },
        )
        assert.match(await response.text(), /pixel/)
        const [{ body }] = await app.lanes.requests(lane)
        assert.match(JSON.stringify(body.messages), /data:image\/png;base64,iVBOR/)
      })
    })
})
