import fields from 'fields:createWorkflow'
import type { WorkflowInput } from '@muster/client'
import { createWorkflow, listWorkflows } from '@muster/client/operations'
import { IconLayoutKanban, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { DefinitionList } from '#components/definition-list.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.workflows

/** Workflows of a project. */
export function Workflows() {
  return (
    <DefinitionList
      kind="workflows"
      texts={texts}
      icon={<IconLayoutKanban />}
      operations={{ list: listWorkflows, create: createWorkflow }}
      column={{ title: texts.states, cell: ({ states }) => states.length }}
      isSearched={false}
      create={
        <FormButton
          label={texts.create}
          leftSection={<IconPlus size={16} />}
          modalSize="xl"
          form={close => <WorkflowForm onDone={close} />}
        />
      }
    />
  )
}

/** A definition to begin with: the smallest board that is of use. */
const EXAMPLE = {
  states: [
    { name: 'to do', initial: true },
    { name: 'in progress', kind: 'human' },
    { name: 'done', terminal: true },
  ],
  transitions: [
    { name: 'start', from: ['to do'], to: 'in progress' },
    { name: 'finish', from: ['in progress'], to: 'done' },
    { name: 'reopen', from: ['in progress'], to: 'to do' },
  ],
}

function WorkflowForm({ onDone }: { onDone: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  return (
    <CommandForm
      label={strings.create}
      schema={fields}
      only={['name', 'description', 'states', 'transitions', 'payload_schema']}
      start={EXAMPLE}
      run={async values => createWorkflow(api, { ...(values as WorkflowInput), project_id: projectId })}
      stale={[['workflows', projectId]]}
      onResult={({ id }) => void navigate({ to: `/p/${projectId}/workflows/${id}` })}
      onDone={onDone}
    />
  )
}
