import type { Client, Reply, TestApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

/** A share of something, made by its publisher. */
export async function shared(publisher: Client, resource: string, fields: Record<string, unknown> = {}): Promise<any> {
  const actions = resource.includes(':tool:') ? ['tools:CallTool'] : ['agents:CreateAgentGeneration']
  return createdBy(publisher, '/shares', { resource, actions, ...fields })
}

export const accepted = (grantee: Client, shareId: string): Promise<any> =>
  createdBy(grantee, `/shares/${shareId}/accept`, {}, 200)

/** How many replies had each status. */
export function statuses(replies: readonly Reply[]): Record<number, number> {
  const counts: Record<number, number> = {}
  for (const { status } of replies) counts[status] = (counts[status] ?? 0) + 1
  return counts
}

/** Actions of a project that shares tools. */
export const PUBLISHING = ['tools:*', 'shares:*', 'secrets:*', 'events:ListEvents', 'audit:*']

/** Actions of a project that uses them. */
export const USING = ['tools:*', 'shares:*', 'events:ListEvents', 'agents:*', 'ingestion-rules:*', 'audit:*']

/** Names of the events of a resource, oldest first. */
export async function eventsOf(app: TestApp, project: string, id: string): Promise<string[]> {
  const { body } = await app.admin.get(`/events?project_id=${project}&resource_id=${id}&limit=100`)
  return body.data.map(({ event }: { event: string }) => event).reverse()
}
