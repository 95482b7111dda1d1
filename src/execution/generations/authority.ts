import type { Caller } from '../../core/iam/caller.ts'
import { compileDocument } from '../../core/iam/policy.ts'
import type { Services } from '../../core/process/services.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import type { AgentRow } from '../agents/model.ts'
import type { GenerationRow } from './model.ts'

/**
 * Whom a turn runs as now, within the boundary of its agent; null when it may not act any more. A boundary that cannot be
 * read denies everything.
 */
export async function actingCaller(
  services: Services,
  { authority, project_id }: Pick<GenerationRow, 'authority' | 'project_id'>,
  { boundary_policy }: Pick<AgentRow, 'boundary_policy'>,
): Promise<Caller | null> {
  const caller = await callerForPrincipal(services, authority, project_id)
  if (!caller || boundary_policy === null) return caller
  return { ...caller, layers: [...caller.layers, { kind: 'agent', documents: [compileDocument(boundary_policy)] }] }
}
