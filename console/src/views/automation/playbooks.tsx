import fields from 'fields:createPlaybook'
import type { PlaybookInput } from '@muster/client'
import { createPlaybook, listPlaybooks } from '@muster/client/operations'
import { IconListCheck, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { DefinitionList } from '#components/definition-list.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.playbooks

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
  return (
    <DefinitionList
      kind="playbooks"
      texts={texts}
      icon={<IconListCheck />}
      operations={{ list: listPlaybooks, create: createPlaybook }}
      column={{ title: texts.steps, cell: ({ steps }) => steps.length }}
      create={
        <FormButton
          label={texts.create}
          leftSection={<IconPlus size={16} />}
          modalSize="xl"
          form={close => <PlaybookForm onDone={close} />}
        />
      }
    />
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
