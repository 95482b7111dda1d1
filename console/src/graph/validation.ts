import { createOrchestration, updateOrchestration, validateOrchestration } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { usePermissions } from '#projects.ts'
import type { Findings } from './definition.ts'

const NOTHING: Findings = { problems: [], warnings: [] }

/**
 * Has a definition validated by the service; null for a text that is none. Every user may validate, but only those who
 * write have references looked up in the project.
 */
export function useFindings(projectId: string, definition: object | null): { findings: Findings; error: unknown } {
  const isAllowed = usePermissions(projectId)
  const mayWrite = isAllowed(createOrchestration) || isAllowed(updateOrchestration)
  const { data, error } = useQuery<Findings>({
    queryKey: ['orchestration-findings', projectId, mayWrite, JSON.stringify(definition)],
    queryFn: async ({ signal }) =>
      validateOrchestration(api, { ...definition, ...(mayWrite ? { project_id: projectId } : {}) }, { signal }),
    enabled: definition !== null && mayWrite !== undefined,
    placeholderData: previous => previous,
    gcTime: 10_000,
  })
  return { findings: data ?? NOTHING, error }
}
