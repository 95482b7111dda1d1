import { randomUUID } from 'node:crypto'
import { Chat } from '@ai-sdk/react'
import { type ChatInit, DefaultChatTransport, type UIMessage } from 'ai'

type Json = Record<string, any>

export const chatUrl = (app: { url: string }, agentId: string): string => `${app.url}/ui/v1/chat/${agentId}`

type Options = { agentId: string; token: string; headers?: Record<string, string>; body?: object } & ChatInit<UIMessage>

/** A chat of the unmodified package, as `useChat` creates it. */
export function openChat(app: { url: string }, { agentId, token, headers, body, ...init }: Options): Chat<UIMessage> {
  return new Chat({
    id: randomUUID(),
    transport: new DefaultChatTransport({
      api: chatUrl(app, agentId),
      headers: { Authorization: `Bearer ${token}`, ...headers },
      body,
    }),
    ...init,
  })
}

/** The texts of a chat by role, in order. */
export const transcript = ({ messages }: { messages: readonly UIMessage[] }): string[] =>
  messages.map(({ role, parts }) => `${role}: ${textOf(parts)}`)

const textOf = (parts: UIMessage['parts']): string =>
  parts.map(part => (part.type === 'text' ? part.text : '')).join('')

/** The last message of a chat, with its parts of a type. */
export const partsOf = ({ messages }: { messages: readonly UIMessage[] }, type: string): Json[] =>
  (messages.at(-1)?.parts ?? []).filter(part => part.type === type)

export type ChunkReply = { status: number; headers: Headers; chunks: Json[]; text: string; body: any }

/** Sends a request to the mount and reads the response to its end. */
export async function requestUi(
  app: { url: string },
  {
    token,
    agentId,
    path = '',
    method,
    body,
    headers = {},
  }: {
    token: string | null
    agentId: string
    path?: string
    method?: string
    body?: unknown
    headers?: Record<string, string>
  },
): Promise<ChunkReply> {
  const response = await fetch(`${chatUrl(app, agentId)}${path}`, {
    method: method ?? (body === undefined ? 'GET' : 'POST'),
    headers: {
      ...(token !== null && { authorization: `Bearer ${token}` }),
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
  const text = await response.text()
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream')
  const chunks = isStream
    ? text
        .split('\n\n')
        .filter(block => block.startsWith('data: {'))
        .map(block => JSON.parse(block.slice('data: '.length)))
    : []
  return {
    status: response.status,
    headers: response.headers,
    chunks,
    text,
    body: isStream || text === '' ? null : JSON.parse(text),
  }
}

/** A request with a message of the user. */
export const asking = (text: string, fields: Json = {}): Json => ({
  id: randomUUID(),
  messages: [{ id: randomUUID(), role: 'user', parts: [{ type: 'text', text }] }],
  trigger: 'submit-message',
  ...fields,
})

export const chunkTypes = ({ chunks }: { chunks: readonly Json[] }): string[] => chunks.map(({ type }) => type)
