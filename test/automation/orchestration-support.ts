import assert from 'node:assert/strict'
import type { Client, Reply } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

/** What the key of a test may do. */
export const ORCHESTRATION_ACTIONS = ['orchestrations:*', 'events:*', 'audit:*', 'tools:*']

export type Graph = { nodes: unknown[]; edges: unknown[]; [name: string]: unknown }

/** A transform; its expression reads nothing. */
export const step = (id: string, fields: object = {}) => ({ id, type: 'transform', expression: 1, ...fields })

/** An edge, with its condition after a colon: `a->b:yes`. */
export function edge(text: string, fields: object = {}) {
  const [, from, to, condition] = /^(.*)->([^:]*)(?::(.*))?$/.exec(text) as RegExpExecArray
  return { from, to, ...(condition === undefined ? {} : { condition }), ...fields }
}

/** A graph whose edges are written `a->b`. */
export const graphOf = (nodes: readonly object[], edges: readonly string[] = [], fields: object = {}): Graph => ({
  nodes: [...nodes],
  edges: edges.map(text => edge(text)),
  ...fields,
})

export async function madeOrchestration(key: Client, fields: Record<string, unknown> = {}): Promise<any> {
  return createdBy(key, '/orchestrations', { name: 'graph', ...graphOf([step('a')]), ...fields })
}

/** Findings of a graph as `CODE path`, sorted. */
export async function findings(key: Client, graph: object): Promise<{ problems: string[]; warnings: string[] }> {
  const reply = await key.post('/orchestrations/validate', graph)
  assert.equal(reply.status, 200, JSON.stringify(reply.body))
  const { valid, problems, warnings } = reply.body
  assert.equal(valid, problems.length === 0)
  return { problems: listed(problems), warnings: listed(warnings) }
}

export const listed = (found: readonly { code: string; path: string }[]): string[] =>
  found.map(({ code, path }) => `${code} ${path}`).sort()

/** The findings that a write was refused with. */
export function refusedGraph(reply: Reply): { problems: string[]; warnings: string[]; meta: any } {
  assert.equal(reply.status, 400, JSON.stringify(reply.body))
  assert.equal(reply.body.error.code, 'ORCHESTRATION_VALIDATION_FAILED')
  const { meta } = reply.body.error
  return { problems: listed(meta.problems), warnings: listed(meta.warnings), meta }
}
