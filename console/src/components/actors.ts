import { listActors } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from '../api.ts'
import { usePermissions, useProjectId } from '../projects.ts'
import { visible } from './text.tsx'

/** End users by ID, as far as the user may list them. */
export function useActors() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { data } = useQuery({
    queryKey: ['actors', projectId, 'all'],
    queryFn: async ({ signal }) =>
      (await listActors(api, { project_id: projectId, limit: 100 }, { signal }).page()).data,
    enabled: isAllowed('actors:ListActors') === true,
    staleTime: 30_000,
  })
  const nameOf = (id: string) => visible(data?.find(actor => actor.id === id)?.name ?? id)
  return { actors: data, nameOf }
}
