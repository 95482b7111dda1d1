import { Select, TextInput } from '@mantine/core'
import { createDataset } from '@muster/client/operations'
import { useState } from 'react'
import { api } from '#api.ts'
import { useDatasets } from '#choices.ts'
import * as strings from '#strings.ts'

/** The field that names the dataset of new items: one of the project's, or a new one where there is none. */
export function useDatasetSelect(projectId: string) {
  const { rows, choices, query } = useDatasets(projectId)
  const [chosen, setChosen] = useState<string | null>(null)
  const [name, setName] = useState('')
  const id = chosen ?? rows?.[0]?.id
  const isNew = rows?.length === 0
  return {
    /** Whether the datasets have been read. */
    isReady: rows !== undefined,
    error: query.error,
    /** Returns the ID of the dataset, which is created where there is none. */
    datasetId: async (): Promise<string> =>
      isNew ? (await createDataset(api, { project_id: projectId, name: name.trim() })).id : (id as string),
    field: isNew ? (
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
        value={id ?? null}
        onChange={setChosen}
        allowDeselect={false}
        searchable
        nothingFoundMessage={strings.nothingFound}
        data-autofocus
      />
    ),
  }
}
