import { listAiProviderModels, listDocuments } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api } from '#api.ts'
import { usePermissions } from '#projects.ts'

/** Documents whose directories are suggested. */
const LISTED = 100

/** Returns the models of a provider, for those who may list them. */
export function useModels(projectId: string, providerId: string | null): string[] {
  const mayList = usePermissions(projectId)(listAiProviderModels)
  const { data = [] } = useQuery({
    queryKey: ['ai-providers', 'models', providerId],
    queryFn: async ({ signal }) =>
      listAiProviderModels(api, { ai_provider_id: providerId as string }, { signal }).all({ max: 500 }),
    enabled: mayList === true && providerId !== null,
    staleTime: 60_000,
    retry: false,
  })
  return data.map(({ id }) => id)
}

/** Returns the directories of the first documents of a project. */
export function useDirectories(projectId: string): string[] {
  const mayList = usePermissions(projectId)(listDocuments)
  const { data = [] } = useQuery({
    queryKey: ['documents', projectId, 'directories'],
    queryFn: async ({ signal }) =>
      (await listDocuments(api, { project_id: projectId, limit: LISTED }, { signal }).page()).data,
    enabled: mayList === true,
    staleTime: 60_000,
  })
  const directories = data.flatMap(({ path }) => {
    const parts = path?.split('/').slice(1, -1) ?? []
    return parts.map((_, index) => `/${parts.slice(0, index + 1).join('/')}`)
  })
  return [...new Set(directories)].sort()
}
