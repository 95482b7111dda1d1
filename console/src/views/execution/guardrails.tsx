import { Badge } from '@mantine/core'
import type { Guardrail } from '@muster/client'
import { createGuardrail, listGuardrails } from '@muster/client/operations'
import { IconPlus, IconShieldCheck } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { type Column, ListView, NameCell, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { GuardrailForm } from './guardrail-form.tsx'

/** Guardrails of a project. */
export function Guardrails() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const list = useList<Guardrail>(['guardrails', projectId], async (_, bounds, signal) =>
    listGuardrails(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns: Column<Guardrail>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/guardrails/${id}`} name={name} description={description} />
      ),
    },
    {
      title: strings.guardrails.class,
      cell: ({ document }) => {
        const { class: own } = document as { class?: unknown }
        return <Badge variant="default">{typeof own === 'string' ? own : strings.guardrails.computed}</Badge>
      },
    },
    { title: strings.version, cell: ({ version }) => version },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createGuardrail) && (
    <FormButton
      label={strings.guardrails.create}
      leftSection={<IconPlus size={16} />}
      modalSize="xl"
      form={close => (
        <GuardrailForm onDone={id => void navigate({ to: `/p/${projectId}/guardrails/${id}` })} onCancel={close} />
      )}
    />
  )
  return (
    <Page title={strings.nav.guardrails} intro={strings.guardrails.intro} actions={create}>
      <ListView
        label={strings.nav.guardrails}
        list={list}
        operation={listGuardrails}
        columns={columns}
        empty={
          <Notice icon={<IconShieldCheck />} title={strings.guardrails.empty} action={create} color="indigo">
            {strings.guardrails.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
