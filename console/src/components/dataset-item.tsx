import { Stack, Textarea } from '@mantine/core'
import { createDatasetItem, listDatasets } from '@muster/client/operations'
import { api } from '#api.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { FormButton, useAction } from './actions.tsx'
import { useDatasetSelect } from './dataset-select.tsx'
import { useDraft } from './draft.tsx'
import { SubmitRow } from './schema-form.tsx'

/** The content of an item of a dataset. */
type Item = { input: string; expected: string; metadata?: Record<string, unknown> }

/** Saves a question with its expected output as an item of a dataset. */
export function DatasetItemButton({ item }: { item: Item }) {
  const isAllowed = usePermissions(useProjectId())
  if (!isAllowed(createDatasetItem) || !isAllowed(listDatasets)) return null
  return (
    <FormButton
      label={strings.datasetItem.save}
      variant="default"
      size="xs"
      form={close => <DatasetItemForm item={item} onDone={close} />}
    />
  )
}

function DatasetItemForm({ item, onDone }: { item: Item; onDone: () => void }) {
  const projectId = useProjectId()
  const dataset = useDatasetSelect(projectId)
  const draft = useDraft(`dataset item ${item.input}`, { input: item.input, expected: item.expected })
  const { input, expected } = draft.value
  const set = (change: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...change }))
  const save = useAction({
    run: async () =>
      createDatasetItem(api, {
        dataset_id: await dataset.datasetId(),
        input: [{ role: 'user', content: input }],
        ...(expected.trim() ? { expected_output: expected } : {}),
        ...(item.metadata ? { metadata: item.metadata } : {}),
      }),
    stale: [['datasets', projectId]],
    message: strings.datasetItem.saved,
    onDone: () => {
      draft.forget()
      onDone()
    },
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (dataset.isReady) save.mutate()
      }}
    >
      <Stack gap="md">
        {dataset.field}
        <Textarea
          label={strings.datasetItem.input}
          value={input}
          onChange={event => set({ input: event.currentTarget.value })}
          autosize
          maxRows={8}
          required
        />
        <Textarea
          label={strings.datasetItem.expected}
          value={expected}
          onChange={event => set({ expected: event.currentTarget.value })}
          autosize
          maxRows={12}
        />
        <SubmitRow isPending={save.isPending} error={save.error ?? dataset.error} onCancel={onDone} />
      </Stack>
    </form>
  )
}
