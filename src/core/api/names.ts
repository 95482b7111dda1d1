import { z } from 'zod'

/** Characters that are not visible: controls, formats, line separators and fillers. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/u

/** Joiners and variation selectors within an emoji. */
const WITHIN_EMOJI = /(?<=\p{Extended_Pictographic}|\p{Emoji_Modifier}|\ufe0f)(?:\ufe0f|\u200d)/gu

/**
 * Returns a text in the form in which names are compared and stored (NFKC), so that full-width, composed and decomposed
 * spellings of a name are equal.
 */
export const normalName = (text: string): string => text.normalize('NFKC').trim()

/**
 * Returns the schema of a name by which something is selected or that is unique: normalized, and without invisible
 * characters, so that two names with the same appearance are equal.
 */
export const distinctName = (maxLength: number) =>
  z
    .string()
    .overwrite(normalName)
    .min(1)
    .max(maxLength)
    .refine(text => !INVISIBLE.test(text.replace(WITHIN_EMOJI, '')), 'must not contain invisible characters')
