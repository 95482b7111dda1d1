import { Select, Stack, Textarea, TextInput } from '@mantine/core'
import { createDataset, createDatasetItem } from '@muster/client/operations'
import { useState } from 'react'
import { api } from '../api.ts'
import { useDatasets } from '../choices.ts'
import { usePermissions, useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'
import { FormButton, useAction } from './actions.tsx'
import { SubmitRow } from './schema-form.tsx'

/** What becomes an item of a dataset. */
type Item = { input: string; expected: string; metadata?: Record<string, unknown> }

/** Saves a question with its expected output as an item of a dataset. */
export function DatasetItemButton({ item }: { item: Item }) {
  const isAllowed = usePermissions(useProjectId())
  if (!isAllowed('evaluations:CreateDataset') || !isAllowed('evaluations:ListDatasets')) return null
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
  const { rows, choices, query } = useDatasets(projectId)
  const [chosen, setChosen] = useState<string | null>(null)
  const [name, setName] = useState('')
  const [input, setInput] = useState(item.input)
  const [expected, setExpected] = useState(item.expected)
  const datasetId = chosen ?? rows?.[0]?.id
  const isNew = rows?.length === 0
  const save = useAction({
    run: async () => {
      const id = isNew ? (await createDataset(api, { project_id: projectId, name: name.trim() })).id : datasetId
      return createDatasetItem(api, {
        dataset_id: id as string,
        input: [{ role: 'user', content: input }],
        ...(expected.trim() ? { expected_output: expected } : {}),
        ...(item.metadata ? { metadata: item.metadata } : {}),
      })
    },
    stale: [['datasets', projectId]],
    message: strings.datasetItem.saved,
    onDone,
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (isNew ? name.trim() : datasetId) save.mutate()
      }}
    >
      <Stack gap="md">
        {isNew ? (
          <TextInput
            label={strings.datasetItem.newDataset}
            value={name}
            onChange={event => setName(event.currentTarget.value)}
            required
            data-autofocus
          />
        ) : (
          <Select
            label={strings.datasetItem.dataset}
            data={choices}
            value={datasetId ?? null}
            onChange={setChosen}
            allowDeselect={false}
            searchable
            data-autofocus
          />
        )}
        <Textarea
          label={strings.datasetItem.input}
          value={input}
          onChange={event => setInput(event.currentTarget.value)}
          autosize
          maxRows={8}
          required
        />
        <Textarea
          label={strings.datasetItem.expected}
          value={expected}
          onChange={event => setExpected(event.currentTarget.value)}
          autosize
          maxRows={12}
        />
        <SubmitRow isPending={save.isPending} error={save.error ?? query.error} onCancel={onDone} />
      </Stack>
    </form>
  )
}
