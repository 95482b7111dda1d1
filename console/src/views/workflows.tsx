import fields from 'fields:createWorkflow'
import type { Workflow, WorkflowInput } from '@muster/client'
import { createWorkflow, listWorkflows } from '@muster/client/operations'
import { IconLayoutKanban, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '../api.ts'
import { FormButton } from '../components/actions.tsx'
import { CommandForm } from '../components/command-form.tsx'
import { type Column, ListView, NameCell, useList } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { Notice } from '../components/states.tsx'
import { When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

/** Workflows of a project. */
export function Workflows() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Workflow>(['workflows', projectId], async (_, bounds, signal) =>
    listWorkflows(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns: Column<Workflow>[] = [
    {
      title: strings.workflows.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/workflows/${id}`} name={name} description={description} />
      ),
    },
    { title: strings.workflows.states, cell: ({ states }) => states.length },
    { title: strings.agents.version, cell: ({ version }) => version },
    { title: strings.agents.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed('workflows:CreateWorkflow') && (
    <FormButton
      label={strings.workflows.create}
      leftSection={<IconPlus size={16} />}
      modalSize="xl"
      form={close => <WorkflowForm onDone={close} />}
    />
  )
  return (
    <Page title={strings.nav.workflows} intro={strings.workflows.intro} actions={create}>
      <ListView
        label={strings.nav.workflows}
        list={list}
        action="workflows:ListWorkflows"
        columns={columns}
        empty={
          <Notice icon={<IconLayoutKanban />} title={strings.workflows.empty} action={create} color="indigo">
            {strings.workflows.emptyText}
          </Notice>
        }
      />
    </Page>
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
