import type { Orchestration } from '@muster/client'
import { listOrchestrations } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from '../api.ts'
import { visible } from '../components/text.tsx'
import { usePermissions } from '../projects.ts'

/** Orchestrations whose names are known to lists and filters. */
const NAMES = 100

/** Returns the names of the orchestrations of a project; an id where the name is not known. */
export function useOrchestrationNames(projectId: string) {
  const isAllowed = usePermissions(projectId)
  const { data = [] } = useQuery<Orchestration[]>({
    queryKey: ['orchestrations', projectId, 'names'],
    queryFn: async ({ signal }) =>
      (await listOrchestrations(api, { project_id: projectId, limit: NAMES }, { signal }).page()).data,
    enabled: isAllowed('orchestrations:ListOrchestrations') === true,
    staleTime: 30_000,
  })
  const names = new Map(data.map(({ id, name }) => [id, name]))
  return {
    nameOf: (id: string): string => names.get(id) ?? id,
    choices: data.map(({ id, name }) => ({ value: id, label: visible(name) })),
  }
}
