import type { Orchestration, OrchestrationInput } from '@muster/client'
import { createOrchestration, getOrchestration, updateOrchestration } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import type { Read } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { Loaded, Refused } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { DefinitionForm } from '#editor/definition-form.tsx'
import { orchestrationGraph } from '#editor/orchestration-kind.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** Form of a new orchestration. */
export function NewOrchestration() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const open = (to: string) => void navigate({ to })
  return (
    <Page title={strings.orchestrations.create} intro={strings.orchestrations.emptyText}>
      {isAllowed(createOrchestration) === false ? (
        <Refused operation={createOrchestration} />
      ) : (
        <OrchestrationForm
          onDone={id => open(`/p/${projectId}/orchestrations/${id}`)}
          onCancel={() => open(`/p/${projectId}/orchestrations`)}
        />
      )}
    </Page>
  )
}

/** Form of an existing orchestration. */
export function EditOrchestration() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const { orchestrationId: id } = useIds()
  const isAllowed = usePermissions(projectId)
  const query = useQuery({
    queryKey: ['orchestration', id, 'edit'],
    queryFn: ({ signal }) => read(id, signal),
    // Read once: what others change meanwhile is shown when it is saved.
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  })
  const close = () => void navigate({ to: `/p/${projectId}/orchestrations/${id}` })
  if (isAllowed(updateOrchestration) === false) return <Refused operation={updateOrchestration} />
  return (
    <Loaded query={query} operation={getOrchestration}>
      {first => (
        <Page title={visible(first.record.name)}>
          <OrchestrationForm first={first} onDone={close} onCancel={close} />
        </Page>
      )}
    </Loaded>
  )
}

/** Reads an orchestration, and what a later write of it names. */
async function read(id: string, signal?: AbortSignal): Promise<Read<Orchestration>> {
  const { data, etag } = await getOrchestration(api, { orchestration_id: id }, { signal }).withResponse()
  return { record: data, etag }
}

/** Creates or changes an orchestration. */
function OrchestrationForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Orchestration>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const id = first?.record.id
  return (
    <DefinitionForm<Orchestration>
      kind={orchestrationGraph}
      title={strings.orchestrations.changed}
      first={first}
      read={() => read(id as string)}
      write={async (change, options) =>
        id
          ? updateOrchestration(api, { ...change, orchestration_id: id }, options)
          : createOrchestration(api, { ...(change as OrchestrationInput), project_id: projectId })
      }
      stale={[['orchestrations'], ...(id ? [['orchestration', id]] : [])]}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}
