import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { HttpAgent, type Message, type RunAgentParameters } from '@ag-ui/client'
import type { Client } from '../support/app.ts'

type Json = Record<string, any>

/** Actions that a key needs to serve chats, without reading turns. */
export const CHAT_ACTIONS = [
  'sessions:CreateSession',
  'sessions:SendSessionMessage',
  'sessions:SubmitSessionToolOutputs',
  'sessions:ListSessionMessages',
  'sessions:GetSession',
  'actors:CreateActor',
]

/** A script of the model double, as the text of a user message. */
export const said = (...replies: object[]): string => `@double ${JSON.stringify(replies)}`
export const calls = (name: string, args: object = {}): object => ({ tool_calls: [{ name, args }] })

/** A client of a thread with an unmodified agent, whose events are recorded run by run. */
export class ThreadClient {
  readonly agent: HttpAgent
  readonly runs: Json[][] = []

  constructor(options: {
    url: string
    token: string | null
    agentId: string
    threadId?: string
    messages?: Message[]
    headers?: Record<string, string>
    state?: unknown
  }) {
    this.agent = new HttpAgent({
      url: `${options.url}/ag-ui/${options.agentId}`,
      threadId: options.threadId ?? randomUUID(),
      headers: { Authorization: `Bearer ${options.token}`, ...options.headers },
      initialMessages: options.messages,
      initialState: options.state as any,
    })
    this.agent.subscribe({ onEvent: ({ event }) => void this.runs.at(-1)?.push(event) })
  }

  /** Sends a message of the user and reads the run to its end. Returns its events. */
  async say(content: unknown, parameters: RunAgentParameters = {}): Promise<Json[]> {
    this.agent.addMessage({ id: randomUUID(), role: 'user', content } as Message)
    return this.run(parameters)
  }

  /** Answers pending calls of the client. */
  answer(outputs: Record<string, string>, parameters: RunAgentParameters = {}): Promise<Json[]> {
    for (const [toolCallId, content] of Object.entries(outputs))
      this.agent.addMessage({ id: randomUUID(), role: 'tool', toolCallId, content })
    return this.run(parameters)
  }

  async run(parameters: RunAgentParameters = {}): Promise<Json[]> {
    const events: Json[] = []
    this.runs.push(events)
    await this.agent.runAgent(parameters)
    checkOrder(events)
    return events
  }

  texts(): unknown[] {
    return this.agent.messages
      .filter(({ role, content }) => role === 'assistant' && content)
      .map(({ content }) => content)
  }
}

/** Exactly one RUN_STARTED first, and one end of the run last. */
function checkOrder(events: readonly Json[]): void {
  const names = types(events)
  assert.equal(names[0], 'RUN_STARTED', names.join())
  assert.equal(names.filter(name => name === 'RUN_STARTED').length, 1, names.join())
  const isEnd = (name: string) => name === 'RUN_FINISHED' || name === 'RUN_ERROR'
  assert.deepEqual(names.filter(isEnd), names.slice(-1), names.join())
}

export const types = (events: readonly Json[]): string[] => events.map(({ type }) => type)
export const ofType = (events: readonly Json[], type: string): Json[] => events.filter(event => event.type === type)

/** Posts a body to an agent's mount. Returns the status and the events or the error. */
export async function postRun(
  app: { url: string },
  key: Pick<Client, 'token'>,
  agentId: string,
  body: Json,
  headers: Record<string, string> = {},
): Promise<{ status: number; headers: Headers; events: Json[]; body: any }> {
  const response = await fetch(`${app.url}/ag-ui/${agentId}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key.token}`, 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ tools: [], context: [], state: {}, forwardedProps: {}, ...body }),
  })
  const text = await response.text()
  if (response.status !== 200)
    return { status: response.status, headers: response.headers, events: [], body: JSON.parse(text) }
  const events = text
    .split('\n\n')
    .filter(block => block.startsWith('data: '))
    .map(block => JSON.parse(block.slice(6)))
  checkOrder(events)
  return { status: 200, headers: response.headers, events, body: null }
}
