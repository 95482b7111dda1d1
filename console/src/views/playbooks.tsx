import fields from 'fields:createPlaybook'
import type { Playbook, PlaybookInput } from '@muster/client'
import { createPlaybook, listPlaybooks } from '@muster/client/operations'
import { IconListCheck, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '../api.ts'
import { FormButton } from '../components/actions.tsx'
import { CommandForm } from '../components/command-form.tsx'
import { type Column, ListView, NameCell, SearchField, useList } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { Notice } from '../components/states.tsx'
import { When } from '../components/text.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'

/** The fields of a playbook that people edit. */
export const PLAYBOOK_FIELDS = [
  'name',
  'description',
  'steps',
  'case_schema',
  'input_schema',
  'outcome',
  'resolve_case',
]

/** A procedure to begin with: a question to a person, and a decision. */
const EXAMPLE = {
  steps: [
    {
      key: 'check',
      title: 'Check the claim',
      type: 'manual',
      instructions: 'Compare the claim with the order.',
      result_schema: {
        type: 'object',
        properties: { valid: { type: 'boolean', description: 'Whether the claim is valid' } },
      },
    },
    { key: 'approve', title: 'Approve the payment', type: 'require_approval' },
  ],
  resolve_case: true,
}

/** Playbooks of a project. */
export function Playbooks() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<Playbook>(['playbooks', projectId], async ({ q }, bounds, signal) =>
    listPlaybooks(api, { project_id: projectId, name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<Playbook>[] = [
    {
      title: strings.playbooks.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/playbooks/${id}`} name={name} description={description} />
      ),
    },
    { title: strings.playbooks.steps, cell: ({ steps }) => steps.length },
    { title: strings.agents.version, cell: ({ version }) => version },
    { title: strings.agents.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed('playbooks:CreatePlaybook') && (
    <FormButton
      label={strings.playbooks.create}
      leftSection={<IconPlus size={16} />}
      modalSize="xl"
      form={close => <PlaybookForm onDone={close} />}
    />
  )
  return (
    <Page title={strings.nav.playbooks} intro={strings.playbooks.intro} actions={create}>
      <ListView
        label={strings.nav.playbooks}
        list={list}
        action="playbooks:ListPlaybooks"
        columns={columns}
        fields={<SearchField />}
        empty={
          <Notice icon={<IconListCheck />} title={strings.playbooks.empty} action={create} color="indigo">
            {strings.playbooks.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

function PlaybookForm({ onDone }: { onDone: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  return (
    <CommandForm
      label={strings.create}
      schema={fields}
      only={PLAYBOOK_FIELDS}
      start={EXAMPLE}
      run={async values => createPlaybook(api, { ...(values as PlaybookInput), project_id: projectId })}
      stale={[['playbooks', projectId]]}
      onResult={({ id }) => void navigate({ to: `/p/${projectId}/playbooks/${id}` })}
      onDone={onDone}
    />
  )
}
