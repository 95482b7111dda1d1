import { randomUUID } from 'node:crypto'
import { type Message, Role, type StreamResponse, type Task, TaskState } from '@a2a-js/sdk'
import {
  type Client,
  ClientFactory,
  ClientFactoryOptions,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client'
import type { Client as Caller } from '../support/app.ts'

type Json = Record<string, any>

/** Actions that a key needs to serve clients of an agent. */
export const AGENT_ACTIONS = [
  'sessions:CreateSession',
  'sessions:SendSessionMessage',
  'sessions:SubmitSessionToolOutputs',
  'generations:CancelGeneration',
]
export const RUN_ACTIONS = [
  'orchestrations:StartRun',
  'orchestrations:GetRun',
  'orchestrations:CancelRun',
  'orchestrations:SubmitHumanInput',
]

export const ENV = { A2A_MOUNT: 'true', EGRESS_ALLOW_HOSTS: '127.0.0.1' }

type App = { url: string; config: { BASE_URL: string } }

/** An unmodified client of an agent, found by its card. */
export function connect(
  app: App,
  key: Pick<Caller, 'token'>,
  id: string,
  binding: 'JSONRPC' | 'HTTP+JSON' = 'JSONRPC',
) {
  // The card has the public URL of the deployment.
  const fetchImpl: typeof fetch = (input, init) => {
    const headers = new Headers(init?.headers)
    headers.set('authorization', `Bearer ${key.token}`)
    return fetch(String(input).replace(app.config.BASE_URL, app.url), { ...init, headers })
  }
  const transport =
    binding === 'JSONRPC' ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl })
  const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
    transports: [transport],
    preferredTransports: [binding],
  } as never)
  return cardOf(fetchImpl, app, id).then(card =>
    new ClientFactory(options).createFromAgentCard(card),
  ) as Promise<Client>
}

async function cardOf(fetchImpl: typeof fetch, app: App, id: string) {
  const { DefaultAgentCardResolver } = await import('@a2a-js/sdk/client')
  return new DefaultAgentCardResolver({ fetchImpl }).resolve(`${app.url}/a2a/${id}/`)
}

type PartInput = string | { data: unknown } | { raw: Buffer; mediaType: string; filename?: string } | { url: string }

const part = (input: PartInput) => {
  const common = { metadata: undefined, filename: '', mediaType: '' }
  if (typeof input === 'string') return { ...common, content: { $case: 'text', value: input } }
  if ('data' in input) return { ...common, content: { $case: 'data', value: input.data } }
  if ('url' in input) return { ...common, content: { $case: 'url', value: input.url } }
  const { raw, mediaType, filename = '' } = input
  return { ...common, filename, mediaType, content: { $case: 'raw', value: raw } }
}

/** Parameters of a message. */
export function params(
  parts: PartInput | PartInput[],
  { message = {}, configuration }: { message?: Partial<Message>; configuration?: Json } = {},
) {
  return {
    tenant: '',
    metadata: undefined,
    message: {
      messageId: randomUUID(),
      contextId: '',
      taskId: '',
      role: Role.ROLE_USER,
      parts: [parts].flat().map(part),
      metadata: undefined,
      extensions: [],
      referenceTaskIds: [],
      ...message,
    },
    configuration: configuration && {
      acceptedOutputModes: [],
      taskPushNotificationConfig: undefined,
      returnImmediately: false,
      ...configuration,
    },
  } as never
}

export const stateOf = (task: Task): string => TaskState[task.status?.state ?? 0].replace('TASK_STATE_', '')

/** Returns the text of the answer of a task. */
export const answerOf = (task: Task): unknown => partsOf(task.artifacts[0])[0]
const partsOf = (holder: { parts: any[] } | undefined) => (holder?.parts ?? []).map(each => each.content?.value)
export const explanationOf = (task: Task): any[] => partsOf(task.status?.message)

/** Sends a message and returns its task. */
export const send = async (client: Client, ...args: Parameters<typeof params>): Promise<Task> =>
  (await client.sendMessage(params(...args))) as Task

/** Collects the items of a stream, and calls a function after the first. */
export async function collect(
  stream: AsyncIterable<StreamResponse>,
  onFirst: () => Promise<unknown> = async () => {},
): Promise<any[]> {
  const items: any[] = []
  for await (const { payload } of stream)
    if (items.push({ type: payload?.$case, ...(payload?.value as object) }) === 1) await onFirst()
  return items
}

/** Returns the text that a client has after the updates of a stream. */
export const textOfUpdates = (items: any[]): string =>
  items
    .filter(({ type }) => type === 'artifactUpdate')
    .reduce((text, { append, artifact }) => (append ? text : '') + partsOf(artifact).join(''), '')

/** States in a stream. */
export const statesOf = (items: any[]): string[] =>
  items.flatMap(({ status }) => (status ? TaskState[status.state].replace('TASK_STATE_', '') : []))

/** Calls a method by JSON-RPC, without a client. */
export async function rpc(
  app: { url: string },
  key: { token: string | null },
  id: string,
  method: string,
  body: unknown = {},
  headers: Record<string, string> = {},
): Promise<{ status: number; headers: Headers; body: any }> {
  return post(app, key, `/a2a/${id}`, { jsonrpc: '2.0', id: 1, method, params: body }, headers)
}

export async function post(
  app: { url: string },
  { token }: { token: string | null },
  path: string,
  body: unknown,
  headers: Record<string, string> = {},
): Promise<{ status: number; headers: Headers; body: any }> {
  const response = await fetch(`${app.url}${path}`, {
    method: 'POST',
    headers: {
      ...(token !== null && { authorization: `Bearer ${token}` }),
      'content-type': 'application/json',
      'a2a-version': '1.0',
      ...headers,
    },
    body: JSON.stringify(body),
  })
  const text = await response.text()
  return { status: response.status, headers: response.headers, body: text ? JSON.parse(text) : null }
}

/** A message in JSON. */
export const wireMessage = (parts: object[], fields: object = {}) => ({
  message: { messageId: randomUUID(), role: 'ROLE_USER', parts, ...fields },
})
