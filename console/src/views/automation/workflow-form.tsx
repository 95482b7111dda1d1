import type { Workflow, WorkflowInput } from '@muster/client'
import { createWorkflow, getWorkflow, updateWorkflow } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import type { Read } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { Loaded, Refused } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { DefinitionForm } from '#editor/definition-form.tsx'
import { workflowGraph } from '#editor/workflow-kind.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.workflows

/** Form of a new workflow. */
export function NewWorkflow() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const open = (to: string) => void navigate({ to })
  return (
    <Page title={texts.create} intro={texts.emptyText}>
      {isAllowed(createWorkflow) === false ? (
        <Refused operation={createWorkflow} />
      ) : (
        <WorkflowForm
          onDone={id => open(`/p/${projectId}/workflows/${id}`)}
          onCancel={() => open(`/p/${projectId}/workflows`)}
        />
      )}
    </Page>
  )
}

/** Form of an existing workflow. */
export function EditWorkflow() {
  const navigate = useNavigate()
  const projectId = useProjectId()
  const { workflowId: id } = useIds()
  const isAllowed = usePermissions(projectId)
  const query = useQuery({
    queryKey: ['workflow', id, 'edit'],
    queryFn: ({ signal }) => read(id, signal),
    // Read once: what others change meanwhile is shown when it is saved.
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  })
  const close = () => void navigate({ to: `/p/${projectId}/workflows/${id}` })
  if (isAllowed(updateWorkflow) === false) return <Refused operation={updateWorkflow} />
  return (
    <Loaded query={query} operation={getWorkflow}>
      {first => (
        <Page title={visible(first.record.name)} intro={texts.editText}>
          <WorkflowForm first={first} onDone={close} onCancel={close} />
        </Page>
      )}
    </Loaded>
  )
}

/** Reads a workflow, and what a later write of it names. */
async function read(id: string, signal?: AbortSignal): Promise<Read<Workflow>> {
  const { data, etag } = await getWorkflow(api, { workflow_id: id }, { signal }).withResponse()
  return { record: data, etag }
}

/** Creates or changes a workflow. */
function WorkflowForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Workflow>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const id = first?.record.id
  return (
    <DefinitionForm<Workflow>
      kind={workflowGraph}
      title={texts.changed}
      first={first}
      read={() => read(id as string)}
      write={async (change, options) =>
        id
          ? updateWorkflow(api, { ...change, workflow_id: id }, options)
          : createWorkflow(api, { ...(change as WorkflowInput), project_id: projectId })
      }
      stale={[
        ['workflows', projectId],
        ...(id
          ? [
              ['workflow', id],
              ['board', id],
            ]
          : []),
      ]}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}
