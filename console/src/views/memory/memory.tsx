import createFields from 'fields:createMemoryStore'
import type { MemoryStore, MemoryStoreInput } from '@muster/client'
import { createMemoryStore, listMemoryStores } from '@muster/client/operations'
import { IconBrain, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { type Column, ListView, NameCell, SearchField, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { tagFilter } from '#components/tags.tsx'
import { When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

/** Memory stores of a project. */
export function Memory() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const list = useList<MemoryStore>(['memory-stores', projectId], async ({ q, tag }, bounds, signal) =>
    listMemoryStores(api, { project_id: projectId, name: q, ...tagFilter(tag), ...bounds }, { signal }).page(),
  )
  const columns: Column<MemoryStore>[] = [
    {
      title: strings.memory.store,
      isWide: true,
      cell: ({ id, name, description }) => (
        <NameCell to={`/p/${projectId}/memory/${id}`} name={name} description={description} />
      ),
    },
    { title: strings.memory.current, cell: ({ memory_count }) => memory_count.toLocaleString() },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createMemoryStore) && (
    <FormButton
      label={strings.memory.createStore}
      leftSection={<IconPlus size={16} />}
      form={close => <StoreForm onCancel={close} />}
    />
  )
  return (
    <Page title={strings.nav.memory} intro={strings.memory.intro} actions={create}>
      <ListView
        label={strings.nav.memory}
        list={list}
        operation={listMemoryStores}
        columns={columns}
        fields={
          <>
            <SearchField />
            <SearchField name="tag" label={strings.tags.filter} />
          </>
        }
        empty={
          <Notice icon={<IconBrain />} title={strings.memory.emptyStores} action={create} color="indigo">
            {strings.memory.emptyStoresText}
          </Notice>
        }
      />
    </Page>
  )
}

function StoreForm({ onCancel }: { onCancel: () => void }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const create = useAction({
    run: async (values: Partial<MemoryStoreInput>) =>
      createMemoryStore(api, { name: '', ...values, project_id: projectId }),
    stale: [['memory-stores', projectId]],
    onDone: ({ id }) => void navigate({ to: `/p/${projectId}/memory/${id}` }),
  })
  return (
    <SchemaForm
      schema={createFields}
      omit={['project_id', 'tags']}
      submitLabel={strings.create}
      isPending={create.isPending}
      error={create.error}
      onSubmit={create.mutate}
      onCancel={onCancel}
    />
  )
}
