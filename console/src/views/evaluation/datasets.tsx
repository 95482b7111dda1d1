import fields from 'fields:createDataset'
import type { Dataset, DatasetInput } from '@muster/client'
import { createDataset, listDatasets } from '@muster/client/operations'
import { IconDatabase, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { type Column, ListView, NameCell, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Notice } from '#components/states.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** Datasets of a project. */
export function Datasets() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const list = useList<Dataset>(['datasets', projectId], async (_, bounds, signal) =>
    listDatasets(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns: Column<Dataset>[] = [
    {
      title: strings.name,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/datasets/${id}`} name={name} description={description} />
      ),
    },
    { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createDataset) && (
    <FormButton
      label={strings.datasets.create}
      leftSection={<IconPlus size={16} />}
      form={close => (
        <CommandForm
          label={strings.create}
          schema={fields}
          only={['name', 'description']}
          run={async values => createDataset(api, { ...(values as DatasetInput), project_id: projectId })}
          stale={[['datasets', projectId]]}
          onResult={({ id }) => void navigate({ to: `/p/${projectId}/datasets/${id}` })}
          onDone={close}
        />
      )}
    />
  )
  return (
    <Page title={strings.nav.datasets} intro={strings.datasets.intro} actions={create}>
      <ListView
        label={strings.nav.datasets}
        list={list}
        operation={listDatasets}
        columns={columns}
        empty={
          <Notice icon={<IconDatabase />} title={strings.datasets.empty} action={create} color="indigo">
            {strings.datasets.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}
