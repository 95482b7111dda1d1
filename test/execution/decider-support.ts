import { type Client, eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { made } from './tool-target.ts'

/** What the key of a test may do. */
export const DECIDER_ACTIONS = ['deciders:*', 'tools:*', 'agents:*', 'events:*', 'generations:*', 'traces:*']

/** One question of each type. */
export const QUESTIONS = [
  { type: 'predicate', name: 'urgent', instructions: 'Is it urgent?' },
  {
    type: 'choice',
    name: 'team',
    instructions: 'Who handles it?',
    choices: [
      { value: 'billing', description: 'Money' },
      { value: 'support', description: 'Everything else' },
    ],
  },
  {
    type: 'score',
    name: 'anger',
    instructions: 'How angry is the writer?',
    levels: [
      { label: 'calm', description: 'Not at all' },
      { label: 'annoyed', description: 'Somewhat' },
      { label: 'furious', description: 'Very' },
    ],
  },
]

/** The answers of a tool to QUESTIONS, in another order. */
export const TOOL_ANSWERS = {
  model: 'mine',
  answers: [
    {
      name: 'anger',
      type: 'score',
      score: 1.5,
      confidence: 0.4,
      probabilities: [
        { value: 1, label: 'theirs', probability: 0.5 },
        { value: 2, probability: 0.5 },
      ],
    },
    { name: 'urgent', probability: 0.9 },
    { name: 'team', choice: 'billing', probabilities: [{ value: 'billing', probability: 0.8 }], confidence: 0.8 },
  ],
}

/** An http tool at an address. */
export const toolAt = async (key: Client, url: string, fields: object = {}): Promise<string> =>
  (await made(key, { execute: { url }, ...fields })).id

export async function madeDecider(key: Client, fields: Record<string, unknown>): Promise<any> {
  return createdBy(key, '/deciders', { name: `decider ${++counter}`, questions: QUESTIONS, ...fields })
}
let counter = 0

/** Requests a decision and waits for the end. */
export async function decided(key: Client, deciderId: string, input: unknown, more: object = {}): Promise<any> {
  return createdBy(key, `/deciders/${deciderId}/decisions`, { input, wait: true, ...more })
}

/** A decision once it has settled. */
export const settled = (key: Client, id: string): Promise<any> =>
  eventually(
    async () => {
      const { body } = await key.get(`/decisions/${id}`)
      return body.status === 'completed' || body.status === 'failed' ? body : null
    },
    { what: `end of ${id}` },
  )

export const eventsOf = async (key: Client, id: string): Promise<any[]> =>
  (await key.get(`/events?resource_id=${id}`)).body.data
