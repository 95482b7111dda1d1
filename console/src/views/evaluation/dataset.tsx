import creation from 'fields:createDatasetItem'
import changing from 'fields:updateDataset'
import { FileInput, Group, Stack, Text } from '@mantine/core'
import type { Dataset, DatasetItem, DatasetItemPatch, DatasetPatch } from '@muster/client'
import {
  createDatasetItem,
  deleteDataset,
  deleteDatasetItem,
  exportDatasetItems,
  getDataset,
  importDatasetFile,
  listDatasetItems,
  updateDataset,
  updateDatasetItem,
} from '@muster/client/operations'
import { IconDatabase, IconEdit, IconPlus } from '@tabler/icons-react'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { type Column, ListView, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { saveAs } from '#components/save.ts'
import type { ObjectSchema } from '#components/schema-form.tsx'
import { SubmitRow } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.datasets

/** Length of a text that a form shows in several lines. */
const LONG = 1_000_000

type Message = DatasetItem['input'][number]

/** Returns the text of a message; its other parts by their type. */
const messageText = ({ content }: Message): string =>
  typeof content === 'string'
    ? content
    : content.map(part => (typeof part.text === 'string' ? part.text : `[${part.type}]`)).join('\n')

/** Returns the last message of an input, to which the agent replies. */
export const inputText = (input: Message[]): string => {
  const last = input.at(-1)
  return last ? messageText(last) : ''
}

/** A dataset with its items. */
export function DatasetView() {
  const { datasetId } = useIds()
  return (
    <RecordPage queryKey={['dataset', datasetId]} get={getDataset} ids={{ dataset_id: datasetId }}>
      {record => <DatasetPage dataset={record} />}
    </RecordPage>
  )
}

function DatasetPage({ dataset }: { dataset: Dataset }) {
  const { id, name, description, project_id } = dataset
  const isAllowed = usePermissions(project_id)
  const mayChange = isAllowed(updateDataset)
  const list = useList<DatasetItem>(['dataset', id, 'items'], async (_, bounds, signal) =>
    listDatasetItems(api, { dataset_id: id, ...bounds }, { signal }).page(),
  )
  const columns: Column<DatasetItem>[] = [
    {
      title: texts.item,
      isWide: true,
      cell: ({ input }) => (
        <Text lineClamp={3} className="wrap">
          {visible(inputText(input))}
        </Text>
      ),
    },
    {
      title: texts.expected,
      cell: ({ expected_output }) => (
        <Text size="sm" lineClamp={3} className="wrap">
          {expected_output === null ? strings.none : visible(expected_output)}
        </Text>
      ),
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
    {
      title: '',
      cell: item =>
        mayChange && (
          <Group gap="xs" justify="flex-end">
            <FormButton
              size="xs"
              variant="default"
              label={strings.edit}
              form={close => <ItemEditForm item={item} onDone={close} />}
            />
            <ActionButton
              label={strings.remove}
              question={texts.deleteItem}
              run={async () => deleteDatasetItem(api, { dataset_id: id, item_id: item.id })}
              stale={[['dataset', id]]}
            />
          </Group>
        ),
    },
  ]
  const add = mayChange && (
    <FormButton
      label={texts.add}
      leftSection={<IconPlus size={16} />}
      form={close => <ItemForm datasetId={id} onDone={close} />}
    />
  )
  const upload = mayChange && (
    <FormButton label={texts.import} variant="default" form={close => <ImportForm datasetId={id} onDone={close} />} />
  )
  return (
    <Page
      title={name}
      intro={description && visible(description)}
      actions={
        <>
          <RemoveButton
            operation={deleteDataset}
            ids={{ dataset_id: id }}
            question={texts.deleteText}
            stale={[
              ['datasets', project_id],
              ['evals', project_id],
            ]}
            list="datasets"
          />
          {mayChange && (
            <FormButton
              label={strings.edit}
              variant="default"
              leftSection={<IconEdit size={16} />}
              form={close => (
                <CommandForm
                  label={strings.save}
                  schema={changing}
                  initial={dataset}
                  run={async (values: DatasetPatch) => updateDataset(api, { dataset_id: id, ...values })}
                  stale={[
                    ['dataset', id],
                    ['datasets', project_id],
                  ]}
                  onDone={close}
                />
              )}
            />
          )}
          {upload}
          {add}
        </>
      }
    >
      <ListView
        label={strings.nav.datasets}
        list={list}
        operation={listDatasetItems}
        columns={columns}
        empty={
          <Notice icon={<IconDatabase />} title={texts.noItems} color="indigo">
            {texts.noItemsText}
          </Notice>
        }
      />
      {(list.query.data?.total ?? 0) > 0 && (
        <Group gap="sm">
          {(['csv', 'jsonl'] as const).map(format => (
            <ActionButton
              key={format}
              label={texts.export(format)}
              run={async () => {
                const file = await exportDatasetItems(api, { dataset_id: id, format })
                saveAs([await file.bytes()], `${name}.${format}`)
              }}
            />
          ))}
        </Group>
      )}
    </Page>
  )
}

const expected = { type: 'string', maxLength: LONG, title: texts.expected }
const { metadata } = creation.properties ?? {}
/** The fields of an item with one message. */
const itemFields: ObjectSchema = {
  properties: {
    message: { type: 'string', maxLength: LONG, title: texts.message },
    expected_output: expected,
    metadata,
  },
  required: ['message'],
}
const itemEditFields: ObjectSchema = { properties: { ...creation.properties, expected_output: expected } }

function ItemForm({ datasetId, onDone }: { datasetId: string; onDone: () => void }) {
  return (
    <CommandForm
      label={texts.add}
      schema={itemFields}
      run={async ({ message, ...values }) =>
        createDatasetItem(api, {
          dataset_id: datasetId,
          input: [{ role: 'user', content: message as string }],
          ...values,
        })
      }
      stale={[['dataset', datasetId]]}
      onDone={onDone}
    />
  )
}

function ItemEditForm({ item, onDone }: { item: DatasetItem; onDone: () => void }) {
  const { id, dataset_id } = item
  return (
    <CommandForm
      label={strings.save}
      schema={itemEditFields}
      initial={item}
      run={async (values: DatasetItemPatch) => updateDatasetItem(api, { dataset_id, item_id: id, ...values })}
      stale={[['dataset', dataset_id]]}
      onDone={onDone}
    />
  )
}

function ImportForm({ datasetId, onDone }: { datasetId: string; onDone: () => void }) {
  const [file, setFile] = useState<File | null>(null)
  const send = useAction({
    run: async (chosen: File) =>
      importDatasetFile(api, {
        dataset_id: datasetId,
        file: chosen,
        content_type: chosen.name.toLowerCase().endsWith('.csv') ? 'text/csv' : 'application/x-ndjson',
      }),
    stale: [['dataset', datasetId]],
    onDone,
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (file) send.mutate(file)
      }}
    >
      <Stack gap="md">
        <FileInput
          label={strings.cases.file}
          description={`${texts.importHelp} ${texts.more}`}
          accept=".csv,.jsonl,.ndjson"
          required
          value={file}
          onChange={setFile}
          data-autofocus
        />
        <SubmitRow
          label={texts.import}
          isPending={send.isPending}
          error={send.error}
          onCancel={onDone}
          disabled={!file}
        />
      </Stack>
    </form>
  )
}
