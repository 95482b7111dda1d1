import type { Decider } from '@muster/client'
import { createDecider, listDeciders, listDecisions } from '@muster/client/operations'
import { IconGavel, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { type Column, ListView, NameCell, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, type Tab } from '#components/record.tsx'
import { Notice } from '#components/states.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { DeciderForm } from './decider-form.tsx'
import { AnsweredBy, DecisionList } from './decisions.tsx'

const texts = strings.deciders

/** Deciders of a project, and the decisions made in it. */
export function Deciders() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const create = isAllowed(createDecider) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      modalSize="xl"
      form={close => (
        <DeciderForm onDone={id => void navigate({ to: `/p/${projectId}/deciders/${id}` })} onCancel={close} />
      )}
    />
  )
  const tabs: Tab[] = [{ value: 'deciders', title: strings.nav.deciders, content: () => <List create={create} /> }]
  if (isAllowed(listDecisions))
    tabs.push({ value: 'decisions', title: texts.allDecisions, content: () => <DecisionList /> })
  return (
    <Page title={strings.nav.deciders} intro={texts.intro} actions={create}>
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

function List({ create }: { create: ReactNode }) {
  const projectId = useProjectId()
  const list = useList<Decider>(['deciders', projectId], async ({ q }, bounds, signal) =>
    listDeciders(api, { project_id: projectId, name: q, ...bounds }, { signal }).page(),
  )
  const columns: Column<Decider>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/deciders/${id}`} name={name} description={description} />
      ),
    },
    { title: texts.answeredBy, cell: decider => <AnsweredBy {...decider} /> },
    { title: texts.questions, cell: ({ questions }) => questions.length },
    { title: strings.version, cell: ({ version }) => version },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  return (
    <ListView
      label={strings.nav.deciders}
      list={list}
      operation={listDeciders}
      columns={columns}
      fields={<SearchField />}
      empty={
        <Notice icon={<IconGavel />} title={texts.empty} action={create} color="indigo">
          {texts.emptyText}
        </Notice>
      }
    />
  )
}
