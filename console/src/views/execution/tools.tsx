import { Badge } from '@mantine/core'
import type { Tool } from '@muster/client'
import { createTool, listShares, listTools } from '@muster/client/operations'
import { IconPlus, IconTool } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, NameCell, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, type Tab } from '#components/record.tsx'
import { Shares } from '#components/shares.tsx'
import { Notice } from '#components/states.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { TOOL_TYPES, ToolForm } from './tool-form.tsx'

/** Tools of a project, and those that projects share. */
export function Tools() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const create = isAllowed(createTool) && (
    <FormButton
      label={strings.tools.create}
      leftSection={<IconPlus size={16} />}
      modalSize="xl"
      form={close => <ToolForm onDone={id => void navigate({ to: `/p/${projectId}/tools/${id}` })} onCancel={close} />}
    />
  )
  const tabs: Tab[] = [{ value: 'tools', title: strings.nav.tools, content: () => <ToolList create={create} /> }]
  if (isAllowed(listShares)) tabs.push({ value: 'shares', title: strings.shares.title, content: () => <Shares /> })
  return (
    <Page title={strings.nav.tools} intro={strings.tools.intro} actions={create}>
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

function ToolList({ create }: { create: React.ReactNode }) {
  const projectId = useProjectId()
  const list = useList<Tool>(['tools', projectId], async ({ q, type }, bounds, signal) => {
    const chosen = TOOL_TYPES.filter(each => each === type)
    return listTools(api, { project_id: projectId, name: q, type: chosen, ...bounds }, { signal }).page()
  })
  const columns: Column<Tool>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/tools/${id}`} name={name} description={description} />
      ),
    },
    { title: strings.tools.type, cell: ({ type }) => <Badge variant="default">{strings.tools.types[type]}</Badge> },
    { title: strings.agents.guardrails, cell: ({ guardrail_ids }) => guardrail_ids?.length || strings.none },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  return (
    <ListView
      label={strings.nav.tools}
      list={list}
      operation={listTools}
      columns={columns}
      fields={
        <>
          <SearchField />
          <ChoiceField
            name="type"
            label={strings.tools.type}
            choices={TOOL_TYPES.map(value => ({ value, label: strings.tools.types[value] }))}
          />
        </>
      }
      empty={
        <Notice icon={<IconTool />} title={strings.tools.empty} action={create} color="indigo">
          {strings.tools.emptyText}
        </Notice>
      }
    />
  )
}
