import fields from 'fields:createMetadataSchema'
import { Text } from '@mantine/core'
import type { MetadataSchema, MetadataSchemaInput } from '@muster/client'
import {
  createMetadataSchema,
  getMetadataSchema,
  listMetadataSchemas,
  updateMetadataSchema,
} from '@muster/client/operations'
import { IconListDetails, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FormButton } from '#components/actions.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { ChoiceField, type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { RecordForm, readTagged } from '#components/record-form.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { isObject } from '#json.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.metadataSchemas

const KINDS = ['document', 'file'] as const

/** Metadata schemas of a project. */
export function MetadataSchemas() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const list = useList<MetadataSchema>(['metadata-schemas', projectId], async ({ kind }, bounds, signal) => {
    const resource_type = KINDS.filter(each => each === kind)
    return listMetadataSchemas(api, { project_id: projectId, resource_type, ...bounds }, { signal }).page()
  })
  const columns: Column<MetadataSchema>[] = [
    {
      title: texts.folder,
      isWide: true,
      cell: ({ id, path_prefix }) => (
        <RecordLink to={`/p/${projectId}/metadata-schemas/${id}`}>{visible(path_prefix)}</RecordLink>
      ),
    },
    { title: texts.for, cell: ({ resource_type }) => texts.kinds[resource_type] },
    {
      title: texts.schema,
      cell: ({ schema }) => {
        const names = isObject(schema.properties) ? Object.keys(schema.properties) : []
        return <Text inherit>{visible(names.join(', ')) || strings.none}</Text>
      },
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createMetadataSchema) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => (
        <MetadataSchemaForm
          onDone={id => void navigate({ to: `/p/${projectId}/metadata-schemas/${id}` })}
          onCancel={close}
        />
      )}
    />
  )
  return (
    <Page title={strings.nav.metadataSchemas} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.metadataSchemas}
        list={list}
        operation={listMetadataSchemas}
        columns={columns}
        fields={
          <ChoiceField
            name="kind"
            label={texts.for}
            choices={KINDS.map(value => ({ value, label: texts.kinds[value] }))}
          />
        }
        empty={
          <Notice icon={<IconListDetails />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
    </Page>
  )
}

const properties = fields.properties ?? {}
const schema = {
  properties: {
    resource_type: { ...properties.resource_type, title: texts.for, description: '' },
    path_prefix: { ...properties.path_prefix, title: texts.folder, description: texts.folderHelp },
    schema: { ...properties.schema, title: texts.schema, description: texts.schemaHelp },
  },
  required: fields.required,
}

const EXAMPLE = { type: 'object', required: ['language'], properties: { language: { enum: ['en', 'de'] } } }

export const readSchema = (id: string, signal?: AbortSignal): Promise<Read<MetadataSchema>> =>
  readTagged(getMetadataSchema, { metadata_schema_id: id }, signal)

/** Creates or changes a metadata schema. */
export function MetadataSchemaForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<MetadataSchema>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  return (
    <RecordForm<MetadataSchema>
      first={first}
      read={readSchema}
      write={async (change, options, id) =>
        id
          ? updateMetadataSchema(api, { ...change, metadata_schema_id: id }, options)
          : createMetadataSchema(api, { ...change, project_id: projectId } as MetadataSchemaInput)
      }
      stale={[['metadata-schemas', projectId], ['metadata-schema']]}
      schema={schema}
      only={first ? ['path_prefix', 'schema'] : ['resource_type', 'path_prefix', 'schema']}
      start={first ? {} : { resource_type: 'document', schema: EXAMPLE }}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}
